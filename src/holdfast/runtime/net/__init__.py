"""Between processes: two lanes per peer (`links.py`), frames (`wire.py`), rows (`rows.py`), who may (`security.py`)."""
