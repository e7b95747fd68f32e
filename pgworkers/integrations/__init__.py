"""Other products that pgworkers reports to. A module is imported by the app that uses it, and never by pgworkers."""
