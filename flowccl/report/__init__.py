"""Reports in the browser: one HTML file that works offline. They need Bokeh (the extra `report`).

    save_report([schedule], "report.html")
    save_report([first, second], "compare.html", names=["ring", "flowccl"])

Bokeh draws and zooms; its JavaScript is part of the file, and so is the data. `assets/report.js` adds what Bokeh does
not have: the level of detail, one selection for all pictures, and the time slider.
"""

from flowccl.report.page import report_html, save_report

__all__ = ["report_html", "save_report"]
