from support.cluster_fixtures import cluster, own_cluster

__all__ = ["cluster", "own_cluster"]
