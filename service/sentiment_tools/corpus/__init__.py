"""``sentiment-batch``: classifies every row of a corpus of files, on the cores of one machine or several, and writes Parquet.

``sources`` finds the files, ``parts`` cuts them into parts, ``reading`` reads a part, ``scoring`` classifies its rows, ``output`` stores
the answers, and ``workers`` distributes the parts, over a Ray cluster with ``cluster``. A part is the unit of all work: it is read, scored
and written completely or not at all.
"""
