// Runs the programs of text generation on all ranks: rank 0 orders each step and has the logits of all texts after it.
#include "engine/train/trainer/token_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/model/generation.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/runtime/comm/event.h"

namespace trainctl {
namespace {

/// Copies this rank's part of an input [rows, columns] or [rows].
void fill(const Operand& load, std::span<const int32_t> whole, std::byte* to) {
  const int64_t columns = load.shape.size() > 1 ? load.shape[1] : 1;
  check(load.dtype == DType::i32 && (load.shape.size() < 2 || columns == load.global_shape[1]),
        "only the rows of tokens are cut");
  std::memcpy(to, whole.data() + load.global_offset[0] * columns,
              static_cast<size_t>(load.shape[0] * columns) * sizeof(int32_t));
}

/// Fewer values are converted on one thread, because starting another would take longer.
constexpr int64_t kConvertedTogether = int64_t{1} << 17;
constexpr int kMostThreads = 8;

/// The index of a shard along all dims but the last. At most one of them is cut.
int64_t flat_row(const PrintedPart& part) {
  int64_t row = 0;
  for (size_t d = 0; d + 1 < part.whole.size(); ++d) row = row * part.whole[d] + part.first[d];
  return row;
}

/// Converts printed logits to f32.
void to_floats(const Operand& printed, const void* data, int threads, std::vector<float>& to) {
  const auto size = static_cast<size_t>(num_elements(printed.shape));
  to.resize(size);
  float* const values = to.data();
  if (printed.dtype == DType::f32) {
    std::memcpy(values, data, size * sizeof(float));
    return;
  }
  check(is_half(printed.dtype), "logits are floats");
  const auto* halves = static_cast<const uint16_t*>(data);
  const auto convert = [&](auto to_float) {
    cpu::over_range(threads, static_cast<int64_t>(size), kConvertedTogether, [&](int64_t begin, int64_t end) {
      constexpr int64_t kLanes = 16;  // loops of fixed length are vectorised
      int64_t i = begin;
      for (; i + kLanes <= end; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) values[i + lane] = to_float(halves[i + lane]);
      for (; i < end; ++i) values[i] = to_float(halves[i]);
    });
  };
  if (printed.dtype == DType::bf16)
    convert([](uint16_t half) { return from_bf16(half); });
  else
    convert([](uint16_t half) { return from_f16(half); });
}

}  // namespace

std::vector<Route> routes_of_generation(int processes) {
  std::vector<Route> routes;
  for (int rank = 1; rank < processes; ++rank) {
    routes.push_back({rank, 0});
    routes.push_back({0, rank});
  }
  return routes;
}

TokenSteps::TokenSteps(const PlannedJob& job, const Program& decode, const Program& prefill, Communicator& comm,
                       ExecutorOptions options, const MakeExecutor& make)
    : job_(job),
      comm_(comm),
      tokens_name_(tokens_input(job.spec)),
      printed_(std::make_unique<PrintedTensors>(job, decode)),
      decode_{&decode},
      prefill_{&prefill},
      threads_(std::clamp(comm::usable_cores(), 1, kMostThreads)),
      sent_(static_cast<size_t>(comm.num_ranks())) {
  options.seed = job.spec.seed;
  options.in_flight = 1;
  options.least_arena_bytes = prefill.arena_bytes;
  ExecutorOptions beside = options;
  options.print = [this](const Operand& printed, const void* data, int) { take(printed, data); };
  decode_.executor = make(decode, options);
  prefill_.executor = decode_.executor->beside(prefill, beside);
  for (Steps* steps : {&decode_, &prefill_})
    steps->inputs = steps->executor->allocate_inputs(steps->executor->inputs().bytes);
  exchange_parts();
}

TokenSteps::Part TokenSteps::own_part() const {
  for (const Instruction& i : decode_.program->instructions) {
    if (i.opcode != Opcode::print) continue;
    const PrintedPart part = printed_->part(i.inputs[0], -1);
    if (!part.first_holder) return {};
    const int64_t columns = part.shape.back();
    return {flat_row(part), num_elements(part.shape) / columns, part.first.back(), columns};
  }
  return {};
}

void TokenSteps::exchange_parts() {
  parts_.resize(static_cast<size_t>(comm_.num_ranks()));
  Part& own = parts_[static_cast<size_t>(comm_.rank())] = own_part();
  if (comm_.rank() > 0) {
    comm_.wait_send(0, comm_.send(0, &own, sizeof own));
    return;
  }
  for (int rank = 1; rank < comm_.num_ranks(); ++rank)
    comm_.recv(rank, &parts_[static_cast<size_t>(rank)], sizeof(Part));
  int64_t elements = 0, columns = 0;
  for (const Part& part : parts_) elements += part.size(), columns = std::max(columns, part.column + part.columns);
  check(elements == rows() * columns, "the ranks have each logit once");
  logits_.resize(static_cast<size_t>(elements));
}

void TokenSteps::take(const Operand& printed, const void* data) {
  if (parts_[static_cast<size_t>(comm_.rank())].rows > 0)
    to_floats(printed, data, threads(), comm_.num_ranks() == 1 ? logits_ : own_values_);
}

/// Sends the order of a step to the other ranks. The message has the number of tokens per row, the first positions, and
/// the tokens.
void TokenSteps::order(int64_t tokens_of_row, std::span<const int32_t> tokens, std::span<const int32_t> starts) {
  for (int rank = 1; rank < comm_.num_ranks(); ++rank)
    if (const int64_t sent = sent_[static_cast<size_t>(rank)]; sent > 0) comm_.wait_send(rank, sent);
  message_.assign(1, static_cast<int32_t>(tokens_of_row));
  message_.insert(message_.end(), starts.begin(), starts.end());
  message_.insert(message_.end(), tokens.begin(), tokens.end());
  // All messages have the same size, so that the other ranks know how much to receive.
  message_.resize(static_cast<size_t>(1 + rows() * (1 + prefill_tokens())));
  for (int rank = 1; rank < comm_.num_ranks(); ++rank)
    sent_[static_cast<size_t>(rank)] =
        comm_.send(rank, message_.data(), static_cast<int64_t>(message_.size() * sizeof(int32_t)));
}

void TokenSteps::run(Steps& steps, int64_t tokens_of_row, std::span<const int32_t> tokens,
                     std::span<const int32_t> starts) {
  check(static_cast<int64_t>(tokens.size()) == rows() * tokens_of_row, "each row has as many tokens");
  const InputLayout& layout = steps.executor->inputs();
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    if (layout.offsets[i] < 0) continue;
    const Instruction& load = steps.program->instructions[i];
    check(load.op == tokens_name_ || load.op == kStartsInput, "the graph reads tokens and first positions");
    fill(load.outputs[0], load.op == kStartsInput ? starts : tokens, steps.inputs.get() + layout.offsets[i]);
  }
  StepScalars scalars;
  scalars.step = step_;
  steps.executor->start_step(steps.inputs.get(), scalars);
  steps.executor->finish_step();
}

void TokenSteps::prefill(std::span<const int32_t> tokens, std::span<const int32_t> starts) {
  order(prefill_tokens(), tokens, starts);
  run(prefill_, prefill_tokens(), tokens, starts);
}

void TokenSteps::place(const Part& part, const std::vector<float>& values) {
  const int64_t columns = static_cast<int64_t>(logits_.size()) / rows();
  for (int64_t row = 0; row < part.rows; ++row)
    std::copy_n(values.begin() + row * part.columns, part.columns,
                logits_.begin() + (part.row + row) * columns + part.column);
}

std::span<float> TokenSteps::decode(std::span<const int32_t> tokens, std::span<const int32_t> starts) {
  order(1, tokens, starts);
  run(decode_, 1, tokens, starts);
  if (comm_.num_ranks() == 1) return logits_;
  place(parts_[0], own_values_);
  for (int rank = 1; rank < comm_.num_ranks(); ++rank) {
    const Part& part = parts_[static_cast<size_t>(rank)];
    if (part.rows == 0) continue;
    received_.resize(static_cast<size_t>(part.size()));
    comm_.recv(rank, received_.data(), part.size() * static_cast<int64_t>(sizeof(float)));
    place(part, received_);
  }
  return logits_;
}

void TokenSteps::finish() {
  order(0, {}, std::vector<int32_t>(static_cast<size_t>(rows())));
  for (int rank = 1; rank < comm_.num_ranks(); ++rank) comm_.wait_send(rank, sent_[static_cast<size_t>(rank)]);
}

void TokenSteps::follow() {
  const auto texts = static_cast<size_t>(rows());
  message_.resize(1 + texts * static_cast<size_t>(1 + prefill_tokens()));
  while (true) {
    comm_.recv(0, message_.data(), static_cast<int64_t>(message_.size() * sizeof(int32_t)));
    const int64_t tokens_of_row = message_[0];
    if (tokens_of_row == 0) return;
    const std::span<const int32_t> starts = std::span(message_).subspan(1, texts);
    const std::span<const int32_t> tokens =
        std::span(message_).subspan(1 + texts, texts * static_cast<size_t>(tokens_of_row));
    Steps& steps = tokens_of_row == 1 ? decode_ : prefill_;
    run(steps, tokens_of_row, tokens, starts);
    if (&steps != &decode_ || parts_[static_cast<size_t>(comm_.rank())].rows == 0) continue;
    comm_.wait_send(0, comm_.send(0, own_values_.data(), static_cast<int64_t>(own_values_.size() * sizeof(float))));
  }
}

}  // namespace trainctl
