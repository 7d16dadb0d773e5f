"""Remove what ended jobs left behind, after the times in `[retention]`."""
