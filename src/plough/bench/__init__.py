"""`plough bench`: measuring what Plough is made of, beside what there was before it."""
