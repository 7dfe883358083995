// Computes the bytes that all members of a collective together have to receive from each other.
#include "engine/graph/exchanged_bytes.h"

#include "engine/base/error.h"

namespace trainctl {

int64_t exchanged_bytes(Collective kind, int members, int64_t count, DType dtype) {
  const int64_t p = members, bytes = count * byte_size(dtype);
  switch (kind) {
    case Collective::all_reduce:
      return (count < p || bytes <= kAddedAloneBytes ? p : 2) * (p - 1) * bytes;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return p * (p - 1) * bytes;
    case Collective::broadcast:
      return (p - 1) * bytes;
  }
  check(false, "every collective exchanges bytes");
  return 0;
}

}  // namespace trainctl
