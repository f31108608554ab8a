"""`pykubelet local-api export`: the objects of this API as files for another cluster."""
