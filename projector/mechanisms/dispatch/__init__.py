"""Token dispatch: how tokens reach their experts, a file for each family of strategies."""
