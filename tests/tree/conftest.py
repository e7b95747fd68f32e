from support.cluster_fixtures import forest, own_forest

__all__ = ["forest", "own_forest"]
