// Measures transfer times within a step, between kernels and concurrent with them, which back-to-back transfers do not
// show: as differences between step times of programs made for this purpose (program_bench.h).
#include "cli/measure/transfer_bench.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "cli/measure/program_bench.h"

namespace trainctl {
namespace {

// -------------------------------------------------------------------------------------------------------- messages

int small_kernel(ProgramBuilder& program, const Operand& operand, std::vector<int> waits = {}) {
  return program.kernel("relu", {operand}, operand, {}, std::move(waits));
}

Operand small_operand(ProgramBuilder& program) { return program.tensor({256}, DType::f32); }

Program ping_pong(int rank, int64_t bytes, int rounds) {
  ProgramBuilder program(rank, 2);
  const int peer = 1 - rank;
  const Operand small = small_operand(program), message = program.tensor({bytes / 4}, DType::f32);
  int sent = -1, received = -1;
  for (int i = 0; i < rounds; ++i) {
    if (rank == 1) received = program.recv(peer, message, {sent});
    sent = program.send(peer, message, {small_kernel(program, small, {received})});
    if (rank == 0) received = program.recv(peer, message, {sent});
  }
  return program.take();
}

void add_small_kernels(ProgramBuilder& program, int count) {
  const Operand small = small_operand(program);
  for (int i = 0; i < count; ++i) small_kernel(program, small);
}

/// A program of kernels only: each rank runs as many kernels as both ranks run in the other programs.
Program kernels_of_both(int rank, int rounds) {
  ProgramBuilder program(rank, 2);
  add_small_kernels(program, 2 * rounds);
  return program.take();
}

int rounds_of(int64_t bytes) { return bytes <= (int64_t{4} << 20) ? 16 : 4; }

// --------------------------------------------------------------------------------------------------------- overlap

constexpr int64_t kMiB = int64_t{1} << 20;

struct Call {
  Collective kind;
  int64_t bytes;
};

constexpr std::array<Call, 6> kShortCalls = {{{Collective::all_reduce, kMiB / 16},
                                              {Collective::all_gather, kMiB},
                                              {Collective::reduce_scatter, kMiB},
                                              {Collective::all_reduce, 2 * kMiB},
                                              {Collective::all_gather, 4 * kMiB},
                                              {Collective::reduce_scatter, 4 * kMiB}}};
/// Each call takes about as long as a long product, and none is large enough for the copy engines.
constexpr std::array<Call, 3> kLongCalls = {{{Collective::all_reduce, 12 * kMiB},
                                             {Collective::all_gather, 15 * kMiB},
                                             {Collective::reduce_scatter, 15 * kMiB}}};
constexpr int64_t kMostBytes = 15 * kMiB;

/// Products of 4096 tokens: a short one, and one that occupies the multiprocessors longer than a concurrent call waits.
constexpr int64_t kTokens = 4096;
struct Layer {
  int64_t in, out;
};
constexpr std::array<Layer, 2> kLayers = {{{768, 2304}, {1536, 3072}}};

/// Products that run one after the other.
class Products {
 public:
  explicit Products(ProgramBuilder& program) : program_(program) {
    for (const Layer& layer : kLayers)
      operands_.push_back({program.tensor({kTokens, layer.in}, DType::bf16),
                           program.tensor({layer.out, layer.in}, DType::bf16),
                           program.tensor({kTokens, layer.out}, DType::bf16)});
  }
  /// Adds the product of layer number % kLayers.size(); returns its instruction.
  int add(int number, std::vector<int> waits = {}) {
    const Product& of = operands_[static_cast<size_t>(number) % operands_.size()];
    return program_.kernel("matmul", {of.x, of.w}, of.y, {{"transpose_b", true}}, std::move(waits));
  }

 private:
  struct Product {
    Operand x, w, y;
  };
  ProgramBuilder& program_;
  std::vector<Product> operands_;
};

constexpr int kCalls = 24;  ///< number of collective calls per step, and of pairs of products

template <size_t kCount>
int add_call(ProgramBuilder& program, const std::array<Call, kCount>& calls, int number, std::vector<int> waits = {}) {
  const Call& call = calls[static_cast<size_t>(number) % kCount];
  return program.collective(call.kind, call.bytes, std::move(waits));
}

RankPrograms on_all(int ranks, const std::function<void(ProgramBuilder&)>& build) {
  RankPrograms programs;
  for (int rank = 0; rank < ranks; ++rank) {
    ProgramBuilder program(rank, ranks, kMostBytes);
    build(program);
    programs.push_back(program.take());
  }
  return programs;
}

/// Uses products, not small kernels: their times differ slightly between ranks, and each call waits for the last rank.
void products_between_calls(ProgramBuilder& program) {
  Products products(program);
  for (int i = 0, call = -1; i < kCalls; ++i) call = add_call(program, kShortCalls, i, {products.add(i, {call})});
}

template <size_t kCount>
void calls_alone(ProgramBuilder& program, const std::array<Call, kCount>& calls, int count) {
  add_small_kernels(program, 1);
  for (int i = 0; i < count; ++i) add_call(program, calls, i);
}

void products_around_calls(ProgramBuilder& program) {
  Products products(program);
  for (int i = 0, call = -1; i < kCalls; ++i) {
    call = add_call(program, kLongCalls, i, {products.add(2 * i, {call})});
    products.add(2 * i + 1);
  }
}

void products_beside_calls(ProgramBuilder& program, int calls) {
  Products products(program);
  for (int i = 0; i < calls; ++i) add_call(program, kLongCalls, i);
  for (int i = 0; i < 2 * kCalls; ++i) products.add(i);
}

void products_alone(ProgramBuilder& program, int count, int stride) {
  Products products(program);
  for (int i = 0; i < count; ++i) products.add(stride * i);
}

/// `early`: rank 1 awaits the message before its products.
Program products_and_message(int rank, bool early) {
  ProgramBuilder program(rank, 2);
  const Operand word = small_operand(program), message = program.tensor({3 * kMiB / 4}, DType::f32);
  if (rank == 0) {
    program.send(1, message, {program.recv(1, word, {})});
    return program.take();
  }
  if (early) program.recv(0, message, {});
  Products products(program);
  int last = -1;
  for (int i = 0; i < 2 * kCalls; ++i) last = products.add(i);
  program.send(0, word, {last});
  if (!early) program.recv(0, message, {last});
  return program.take();
}

}  // namespace

std::vector<MessageResult> bench_messages(const std::vector<int64_t>& bytes, Device device, int samples) {
  std::vector<RankPrograms> programs;
  for (const int64_t size : bytes) {
    const int rounds = rounds_of(size);
    programs.push_back({ping_pong(0, size, rounds), ping_pong(1, size, rounds)});
    programs.push_back({kernels_of_both(0, rounds), kernels_of_both(1, rounds)});
  }
  const std::vector<Seconds> steps = bench_programs(programs, device, samples);
  std::vector<MessageResult> results;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Seconds messages = std::max(steps[2 * i] - steps[2 * i + 1], Seconds{1e-9});
    results.push_back({bytes[i], messages / (2 * rounds_of(bytes[i]))});
  }
  return results;
}

double bench_waiting(Device device, int samples) {
  const auto programs = [](bool early) -> RankPrograms {
    return {products_and_message(0, early), products_and_message(1, early)};
  };
  const std::vector<Seconds> steps = bench_programs({programs(false), programs(true)}, device, samples);
  return std::max(1.0, steps[1] / steps[0]);
}

OverlapResult bench_overlap(int ranks, Device device, int samples) {
  constexpr int kFew = kCalls / 4;  // few enough calls to end before the concurrent products
  const std::vector<Seconds> steps = bench_programs(
      {on_all(ranks, [](ProgramBuilder& p) { add_small_kernels(p, 1); }),
       on_all(ranks, [](ProgramBuilder& p) { products_alone(p, kCalls, 1); }),
       on_all(ranks, [](ProgramBuilder& p) { calls_alone(p, kShortCalls, kCalls); }),
       on_all(ranks, products_between_calls), on_all(ranks, [](ProgramBuilder& p) { products_alone(p, kCalls, 2); }),
       on_all(ranks, [](ProgramBuilder& p) { products_alone(p, 2 * kCalls, 1); }),
       on_all(ranks, [](ProgramBuilder& p) { calls_alone(p, kLongCalls, kCalls); }),
       on_all(ranks, products_around_calls), on_all(ranks, [](ProgramBuilder& p) { products_beside_calls(p, kFew); })},
      device, samples);
  const auto [empty, few_products, calls, between, even, products, long_calls, around, beside] = [&] {
    std::array<Seconds, 9> all;
    std::copy(steps.begin(), steps.end(), all.begin());
    return all;
  }();
  // `empty`: time of an empty step, which each of the others includes once.
  OverlapResult result;
  const Seconds few = (long_calls - empty) * (static_cast<double>(kFew) / kCalls);
  result.cost = std::max(1.0, 1 + (beside - products) / few);
  result.delays.exposed = std::max((between - few_products - calls + empty) / kCalls, Seconds{});
  const Seconds slowed = (result.cost - 1) * (products - even);
  result.delays.beside = std::max((around - even - long_calls + empty - slowed) / kCalls, result.delays.exposed);
  return result;
}

}  // namespace trainctl
