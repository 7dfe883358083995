// Collectives and messages between the ranks of a job.
#include "engine/runtime/communicator.h"

namespace trainctl {

std::optional<CommError> Communicator::hopeless(const std::string& call, const std::vector<int>& missing,
                                                bool late) const {
  if (!late) return std::nullopt;
  CommError error(call + " timed out");
  error.missing = missing;
  return error;
}

void Communicator::recv_sum(int, float*, int64_t) {
  check(false,
        "this communicator does not support accumulating "
        "receives");
}
bool Communicator::has_message(int) {
  check(false, "only shared memory supports checking for messages");
  return false;
}
void Communicator::drop_messages(int) {
  check(false, "only shared memory keeps messages of a process that has exited");
}
uint32_t Communicator::mail() const {
  check(false, "only shared memory counts messages");
  return 0;
}
void Communicator::wait_for_mail(uint32_t, double) { check(false, "only shared memory counts messages"); }

}  // namespace trainctl
