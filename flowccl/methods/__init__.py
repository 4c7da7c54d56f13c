"""Methods that synthesize schedules: one module or package per method; `registry` lists them with what they can do."""
