"""What came of the runs? Read from their folders, put together, and shown as a page, figures and Markdown."""
