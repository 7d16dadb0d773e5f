"""Answer questions with wire models. Changes nothing."""
