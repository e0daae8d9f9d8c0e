"""Cloud Billing and its budgets: accounts, whose project is on which, alerts on costs."""
