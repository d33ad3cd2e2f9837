"""Pages from reports: tables and charts, as Markdown and HTML."""
