"""``sentiment-batch``: a corpus of files in, Parquet with an answer to every row out, on the cores of one machine or of many.

``sources`` finds the files, ``parts`` cuts them, ``reading`` reads a part, ``scoring`` answers it, ``output`` keeps what is answered,
``workers`` spreads the parts over Ray. A part is the unit of everything: read, answered and written as a whole, or not at all.
"""
