// Weights that pass from the programs of a training to those of a text generation, whose plan cuts them differently.
#include "engine/train/trainer/shared_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/base/text.h"
#include "engine/graph/half.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/box_runs.h"
#include "engine/train/checkpoint/tiling.h"

namespace trainctl {
namespace {

constexpr int64_t kPassedElements = int64_t{4} << 20;  ///< at a time, so that no buffer is as large as a tensor
constexpr int64_t kTensorAlignment = 4096;

bool is_passed_slot(const StoredRange& range) {
  return (range.slot == kWeightSlot || range.slot == kStateSlot) && !range.variable->is_cache;
}

/// Converts `count` elements from one float type to another.
void convert_floats(DType from, const std::byte* values, DType to, std::byte* results, int64_t count) {
  if (from == to) {
    std::memcpy(results, values, static_cast<size_t>(count * byte_size(to)));
    return;
  }
  check((from == DType::f32 && is_half(to)) || (is_half(from) && to == DType::f32),
        "weights are f32 or 16-bit floats, or of one type in both programs");
  for (int64_t i = 0; i < count; ++i) {
    if (from == DType::f32) {
      float value = 0;
      std::memcpy(&value, values + i * 4, 4);
      uint16_t bits = 0;
      floats_to_halves(to, &value, 1, &bits);
      std::memcpy(results + i * 2, &bits, 2);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, values + i * 2, 2);
      float value = 0;
      halves_to_floats(from, &bits, 1, &value);
      std::memcpy(results + i * 4, &value, 4);
    }
  }
}

/// Returns once all ranks have called it.
void wait_for_all_ranks(Communicator& comm) {
  const int ranks = comm.num_ranks();
  uint8_t here = 1;
  if (comm.rank() > 0) {
    comm.wait_send(0, comm.send(0, &here, sizeof here));
    comm.recv(0, &here, sizeof here);
    return;
  }
  for (int rank = 1; rank < ranks; ++rank) comm.recv(rank, &here, sizeof here);
  std::vector<int64_t> sent(static_cast<size_t>(ranks));
  for (int rank = 1; rank < ranks; ++rank) sent[static_cast<size_t>(rank)] = comm.send(rank, &here, sizeof here);
  for (int rank = 1; rank < ranks; ++rank) comm.wait_send(rank, sent[static_cast<size_t>(rank)]);
}

}  // namespace

SharedWeights::SharedWeights(const PlannedJob& training, int fd) {
  std::set<TensorId> trained;
  for (const Update& update : training.graph.updates)
    if (!update.gradients.empty()) trained.insert(update.parameter);
  for (const VariablePlan& variable : training.plan.variables) {
    const auto& tensor = training.graph.tensors[static_cast<size_t>(variable.tensor)];
    Tensor entry{.number = tensors_.size(), .shape = variable.global_shape};
    entry.changes = tensor.kind == TensorKind::state || trained.contains(variable.tensor);
    tensors_.emplace(tensor.name, std::move(entry));
  }
  int64_t at = round_up(static_cast<int64_t>(tensors_.size()), kTensorAlignment);
  for (auto& [name, tensor] : tensors_) {
    tensor.offset = at;
    at += round_up(num_elements(tensor.shape) * static_cast<int64_t>(sizeof(float)), kTensorAlignment);
  }
  bytes_ = static_cast<size_t>(at);
  const int flags = (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_NORESERVE;
  void* memory = MAP_FAILED;
  if (fd < 0 || ftruncate(fd, at) == 0)  // all ranks the same size
    memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED)
    throw EnvError("cannot allocate " + format_bytes(at) + " for validation.generate: " + std::strerror(errno));
  data_ = static_cast<std::byte*>(memory);
}

SharedWeights::~SharedWeights() { munmap(data_, bytes_); }

int64_t SharedWeights::bytes(const PlannedJob& training) {
  int64_t sum = 0;
  for (const VariablePlan& variable : training.plan.variables)
    sum += round_up(num_elements(variable.global_shape) * static_cast<int64_t>(sizeof(float)), kTensorAlignment);
  return sum;
}

const SharedWeights::Tensor* SharedWeights::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() || (has_passed_ && !found->second.changes) ? nullptr : &found->second;
}

uint8_t* SharedWeights::type_of(const Tensor& tensor) const {
  return reinterpret_cast<uint8_t*>(data_) + tensor.number;
}

void SharedWeights::write(const Program& program, Executor& from) {
  std::vector<std::byte> buffer;
  for (const StoredRange& range : stored_ranges(program)) {
    const Tensor* tensor = range.own_count > 0 && is_passed_slot(range) ? find(range.variable->name) : nullptr;
    if (tensor == nullptr) continue;
    const int64_t width = byte_size(range.dtype);
    *type_of(*tensor) = static_cast<uint8_t>(range.dtype);
    std::byte* const to = data_ + tensor->offset;
    const Box whole = whole_box(tensor->shape);
    for (int64_t at = 0; at < range.own_count; at += kPassedElements) {
      const int64_t count = std::min(kPassedElements, range.own_count - at);
      buffer.resize(static_cast<size_t>(count * width));
      from.read(range.own_offset() + at * width, buffer.data(), static_cast<int64_t>(buffer.size()));
      const std::byte* values = buffer.data();
      for (const Box& box : boxes_of(*range.variable, range.own_first + at, count)) {
        for_each_run(box, box, whole, [&](int64_t in_box, int64_t in_whole, int64_t elements) {
          std::memcpy(to + in_whole * width, values + in_box * width, static_cast<size_t>(elements * width));
        });
        values += num_elements(box.shape) * width;
      }
    }
  }
}

void SharedWeights::read(const Program& program, Executor& to) const {
  std::vector<std::byte> buffer;
  for (const StoredRange& range : stored_ranges(program)) {
    const Tensor* tensor = range.count > 0 && is_passed_slot(range) ? find(range.variable->name) : nullptr;
    if (tensor == nullptr) continue;
    const auto type = static_cast<DType>(*type_of(*tensor));
    const int64_t width = byte_size(range.dtype), stored_width = byte_size(type);
    const std::byte* const from = data_ + tensor->offset;
    const Box whole = whole_box(tensor->shape);
    for (int64_t at = 0; at < range.count; at += kPassedElements) {
      const int64_t count = std::min(kPassedElements, range.count - at);
      buffer.resize(static_cast<size_t>(count * width));
      std::byte* values = buffer.data();
      for (const Box& box : boxes_of(*range.variable, range.first + at, count)) {
        for_each_run(box, whole, box, [&](int64_t in_whole, int64_t in_box, int64_t elements) {
          convert_floats(type, from + in_whole * stored_width, range.dtype, values + in_box * width, elements);
        });
        values += num_elements(box.shape) * width;
      }
      to.write(range.offset + at * width, buffer.data(), static_cast<int64_t>(buffer.size()));
    }
  }
}

void SharedWeights::pass(const Program& trained, Executor& from, const Program& generating, Executor& to,
                         Communicator& comm) {
  write(trained, from);
  wait_for_all_ranks(comm);
  read(generating, to);
  wait_for_all_ranks(comm);  // no rank writes the next weights while another one reads these
  has_passed_ = true;
}

}  // namespace trainctl
