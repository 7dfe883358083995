// See the header.
#include "engine/runtime/communicator.h"

namespace trainctl {

std::optional<CommError> Communicator::hopeless(const std::string& call, const std::vector<int>& missing,
                                                bool late) const {
  if (!late) return std::nullopt;
  CommError error(call + " timed out");
  error.missing = missing;
  return error;
}

}  // namespace trainctl
