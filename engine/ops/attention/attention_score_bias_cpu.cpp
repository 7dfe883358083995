// The gradient of the bias of attention scores. A task writes the elements of the bias that one block of rows shares,
// or that all rows share, and sums over samples and heads, always in the same order.
#include "engine/ops/attention/attention_blocks_cpu.h"

namespace trainctl {
namespace {

using namespace attention_blocks;

constexpr int64_t kLeastZeroedPlaces = 1 << 16;  ///< below this, waking a thread takes longer than the work

class ScoreBiasGrad : public AttentionKernel {
 public:
  explicit ScoreBiasGrad(const KernelCall& call)
      : AttentionKernel(attention_of_grad(call), call),
        dims_(BiasDims::of(call.out[0].shape, call.attrs.text(kScoreBias))),
        grad_{call.in[0].as<float>(), call.in[call.in.size() - 2].as<float>(), call.in.back().as<float>()},
        dbias_(call.out[0].as<float>()),
        adds_(call.out[0].accumulate),
        threads_(call.threads) {
    blocks_ = (n_.t + kQueries - 1) / kQueries;
    blocks_of_task_ = dims_.r > 1 ? 1 : blocks_;
    split(dims_.b * dims_.h * (blocks_ / blocks_of_task_), call.threads);
  }

  void operator()() const {
    // Ranks that share the rows have places for all of them.
    if (!adds_)
      cpu::over_range(threads_, dims_.b * dims_.h * dims_.r * dims_.k, kLeastZeroedPlaces,
                      [this](int64_t begin, int64_t end) { std::fill(dbias_ + begin, dbias_ + end, 0.0f); });
    const int64_t of_rows = blocks_ / blocks_of_task_;
    for_each_task([&](int64_t task, const Buffers& buffers) {
      const int64_t b = task / of_rows / dims_.h, head = task / of_rows % dims_.h;
      const int64_t first_block = task % of_rows * blocks_of_task_;
      const auto last = [](int64_t index, int64_t places, int64_t all) { return places > 1 ? index + 1 : all; };
      for (int64_t sample = b; sample < last(b, dims_.b, n_.b); ++sample)
        for (int64_t h = head; h < last(head, dims_.h, n_.heads()); ++h)
          for (int64_t i = first_block; i < first_block + blocks_of_task_; ++i)
            add(block(sample, h, i * kQueries), buffers);
    });
  }

 private:
  void add(const Block& block, const Buffers& buffers) const {
    load_rows(block, grad_, buffers);
    const int64_t head = block.g * n_.r + block.r;
    for_each_keys(block, [&](const KeyBlock& keys) {
      score(block, keys, buffers);
      multiply(v_ + offset_of(a_.v, block.b, block.g, 0, keys.first), a_.v.row, false, buffers.slopes, kQueries,
               buffers.rates, kQueries, {keys.count, block.width, n_.e}, false, buffers);
      if (drops()) drop(block, keys, buffers, buffers.rates);
      for (int64_t c = 0; c < block.count; ++c) {
        float* const to = dbias_ + a_.terms.bias_of(block.b, head, block.first + c) + keys.first;
        for (int64_t j = 0; j < keys.count; ++j) {
          const float s = buffers.scores[j * kQueries + c];
          if (s != kUnseen)
            to[j] += cpu::exp(s - buffers.top[c]) * (buffers.rates[j * kQueries + c] - buffers.total[c]);
        }
      }
    });
  }

  const BiasDims dims_;
  const GradRows grad_;
  float* const dbias_;
  const bool adds_;
  const int threads_;
  int64_t blocks_ = 0, blocks_of_task_ = 1;
};

}  // namespace

CpuKernel prepare_attention_score_bias_grad(const KernelCall& call) { return ScoreBiasGrad(call); }

}  // namespace trainctl
