// train.fingerprints: fingerprints of weights, gradients, optimizer states and running statistics.
#include "engine/train/trainer/tensor_fingerprints.h"

#include <span>
#include <string>
#include <utility>

#include "engine/runtime/parts.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/trainer/own_values.h"

namespace trainctl {
namespace {

void add_own(const StoredRange& range, Executor& executor, Fingerprint& print, float factor = 1) {
  const Shape& whole = range.variable->global_shape;
  const auto add = [&](int64_t first, std::span<const float> values) {
    size_t next = 0;
    for (const Box& box : boxes_of(*range.variable, first, static_cast<int64_t>(values.size())))
      for_each_run(whole, box.offset, box.shape, [&](int64_t, int64_t in_whole, int64_t length) {
        print.add(in_whole, values.subspan(next, static_cast<size_t>(length)));
        next += static_cast<size_t>(length);
      });
  };
  for_each_own_block(range, executor, add, factor);
}

}  // namespace

Fingerprints own_fingerprints(const Program& program, Executor& executor) {
  Fingerprints prints;
  for (const StoredRange& range : stored_ranges(program))
    if (range.own_count > 0 && !range.is_copy && is_float(range.dtype) && !has_blocks(range.variable->packing))
      add_own(range, executor, prints[std::string(range.slot) + "/" + range.variable->name]);
  const float factor = gradient_factor(program, executor);
  for (const StoredRange& range : gradient_ranges(program))
    if (range.own_count > 0 && is_float(range.dtype))
      add_own(range, executor, prints[std::string(kGradientSlot) + "/" + range.variable->name], factor);
  return prints;
}

TensorFingerprints::TensorFingerprints(const Program& program, Communicator& comm, int64_t every, int64_t first_step,
                                       Sink sink)
    : program_(program), comm_(comm), every_(every), sink_(std::move(sink)), first_(first_step) {}

/// Takes fingerprints if they are due after `step` steps. All ranks call it with the same steps. The states at the
/// beginning and the end of a run are included.
void TensorFingerprints::look(int64_t step, Executor& executor, bool is_end) {
  if (step == last_ || (step % every_ != 0 && step != first_ && !is_end)) return;
  last_ = step;
  Fingerprints prints = own_fingerprints(program_, executor);
  // No step has left a gradient yet.
  if (step == first_)
    std::erase_if(prints, [](const auto& print) { return print.first.starts_with(std::string(kGradientSlot) + "/"); });
  if (program_.rank > 0) {
    const std::string bytes = to_bytes(prints);
    const auto size = static_cast<int64_t>(bytes.size());
    comm_.send(0, &size, sizeof size);
    comm_.wait_send(0, comm_.send(0, bytes.data(), size));
    return;
  }
  for (int rank = 1; rank < comm_.num_ranks(); ++rank) {
    int64_t size = 0;
    comm_.recv(rank, &size, sizeof size);
    std::string bytes(static_cast<size_t>(size), '\0');
    comm_.recv(rank, bytes.data(), size);
    for (const auto& [name, print] : fingerprints_of_bytes(bytes)) prints[name].add(print);
  }
  sink_(step, prints);
}

}  // namespace trainctl
