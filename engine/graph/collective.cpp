// The collectives of a plan, of a program and of the runtime.
#include "engine/graph/collective.h"

namespace trainctl {

std::string_view to_string(Collective kind) {
  switch (kind) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::broadcast:
      return "broadcast";
  }
  return "?";
}

}  // namespace trainctl
