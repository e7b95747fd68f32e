from support.forests import forest, own_forest

__all__ = ["forest", "own_forest"]
