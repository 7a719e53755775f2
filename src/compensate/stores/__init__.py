"""How a table of samples keeps its rows: in full, only where they are not zero, or in a file.

A table of N rows with C entries takes 4 N C bytes: 40 GB for ten million samples and a thousand classes. Proximal steps leave most
rows exactly zero, and most entries of the others, so `Sparse` keeps only what is left. `Mapped` keeps full rows in a file.
"""

from compensate.stores.base import Packed
from compensate.stores.choice import Spec, Store, choose
from compensate.stores.mapped import Mapped
from compensate.stores.sparse import Sparse
from compensate.stores.transfer import Kept

__all__ = ["Kept", "Mapped", "Packed", "Sparse", "Spec", "Store", "choose"]
