"""Request and response headers, each declared once, by family; ``codec`` reads the declarations.

Headers of 5.x carry five more optional fields (ns, nsd, bname, oway, lo); unknown fields are
ignored, as Java does.
"""
