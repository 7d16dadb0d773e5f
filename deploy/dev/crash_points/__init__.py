"""A real service is struck before and after each of its effects. `cell` plays one strike, `verdict` judges it."""
