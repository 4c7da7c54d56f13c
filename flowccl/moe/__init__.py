"""Mixture of experts: alltoallv, dispatch and combine planned in milliseconds."""
