// The experts on CPUs. Pairs of a token and an expert that this rank holds are rows, ordered by expert and then by
// token; a task computes at most 64 rows of one expert:
//   u = x up^T + up_bias    a = act(u)    y += weight * (a down^T + down_bias)
//   backward: da = dy down, dweight = da . a + dy . down_bias, du = weight * da * act'(u), dx += du up;
//   then for each expert dup = du^T x, ddown = (weight * dy)^T a, and the biases' gradients sum du and weight * dy
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/moe/experts_size.h"

namespace trainctl {
namespace {

constexpr int64_t kRowsOfTask = 64;
constexpr int64_t kLinesOfTask = 128;  ///< rows of the gradient of a weight that one task computes
constexpr int64_t kRowsWorthTransposing =
    8;  ///< rows of an expert from which products with its transposed weights are faster
constexpr int64_t kWorthAnExpertThread = 1 << 20;  ///< multiplications

/// Rows [first, first + count) of one expert.
struct ExpertTask {
  int64_t expert, first, count;
};

/// The rows of this rank's experts, in memory that is allocated once.
struct ExpertRows {
  ExpertsSize size;
  std::vector<int64_t> starts;   ///< [experts + 1]: the first row of each expert
  std::vector<int64_t> pair_of;  ///< [rows]: token * top_k + slot
  std::vector<int64_t> row_of;   ///< [tokens * top_k]; -1: another rank's expert
  std::vector<ExpertTask> tasks;

  explicit ExpertRows(const ExpertsSize& n) : size(n) {
    starts.resize(static_cast<size_t>(n.experts) + 1);
    pair_of.resize(static_cast<size_t>(n.rows));
    row_of.resize(static_cast<size_t>(n.tokens * n.top_k));
    tasks.reserve(static_cast<size_t>(n.rows / kRowsOfTask + n.experts));
  }

  int64_t token(int64_t row) const { return pair_of[static_cast<size_t>(row)] / size.top_k; }

  /// "expert 2" or "experts 2 to 5": those of this rank.
  std::string names_of_experts() const {
    return size.experts == 1 ? fmt::format("expert {}", size.first)
                             : fmt::format("experts {} to {}", size.first, size.first + size.experts - 1);
  }

  void sort(const int32_t* ids) {
    std::fill(starts.begin(), starts.end(), 0);
    const auto pairs = static_cast<int64_t>(row_of.size());
    for (int64_t p = 0; p < pairs; ++p)
      if (is_here(ids[p])) ++starts[static_cast<size_t>(ids[p] - size.first) + 1];
    for (size_t e = 1; e < starts.size(); ++e) starts[e] += starts[e - 1];
    if (starts.back() > size.rows)
      throw EnvError(
          fmt::format("moe: the router sends {} rows to {}, but this rank has memory for {}\n  "
                      "increase the layer's capacity, or cut the experts over fewer ranks",
                      starts.back(), names_of_experts(), size.rows));
    for (int64_t p = 0; p < pairs; ++p) {
      int64_t& row = row_of[static_cast<size_t>(p)];
      row = is_here(ids[p]) ? starts[static_cast<size_t>(ids[p] - size.first)]++ : -1;
      if (row >= 0) pair_of[static_cast<size_t>(row)] = p;
    }
    // While rows were placed, each start has advanced to the start of the next expert.
    std::rotate(starts.rbegin(), starts.rbegin() + 1, starts.rend());
    starts[0] = 0;
    tasks.clear();
    for (int64_t e = 0; e < size.experts; ++e)
      for (int64_t r = begin(e); r < begin(e + 1); r += kRowsOfTask)
        tasks.push_back({e, r, std::min(kRowsOfTask, begin(e + 1) - r)});
  }

  int64_t begin(int64_t expert) const { return starts[static_cast<size_t>(expert)]; }

 private:
  bool is_here(int32_t id) const { return id >= size.first && id < size.first + size.experts; }
};

float sigmoid_of(float x) { return 1.0f / (1.0f + cpu::exp(-x)); }

// Constants of the tanh approximation of gelu: sqrt(2 / pi) and the coefficient of the cubic term.
constexpr float kGeluRoot = 0.7978845608028654f, kGeluCube = 0.044715f;

/// act(x) and the slope of act at x.
template <ExpertActivation activation>
float act(float x) {
  if constexpr (activation == ExpertActivation::relu) return x > 0 ? x : 0.0f;
  if constexpr (activation == ExpertActivation::swiglu || activation == ExpertActivation::silu)
    return x * sigmoid_of(x);
  return 0.5f * x * (1 + cpu::tanh(kGeluRoot * (x + kGeluCube * x * x * x)));
}
template <ExpertActivation activation>
float slope(float x) {
  if constexpr (activation == ExpertActivation::relu) return x > 0 ? 1.0f : 0.0f;
  if constexpr (activation == ExpertActivation::swiglu || activation == ExpertActivation::silu) {
    const float s = sigmoid_of(x);
    return s * (1 + x * (1 - s));
  }
  const float t = cpu::tanh(kGeluRoot * (x + kGeluCube * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kGeluRoot * (1 + 3 * kGeluCube * x * x);
}

/// Computes a [hidden] from u [parts, hidden].
template <ExpertActivation activation>
void activate(int64_t hidden, const float* u, float* a) {
  if constexpr (activation == ExpertActivation::clamped_swiglu) {
    for (int64_t i = 0; i < hidden; ++i) {
      const float gate = std::min(u[i], kClampLimit);
      const float up = std::clamp(u[hidden + i], -kClampLimit, kClampLimit);
      a[i] = gate * sigmoid_of(kClampRate * gate) * (up + 1);
    }
  } else if constexpr (is_gated(activation)) {
    for (int64_t i = 0; i < hidden; ++i) a[i] = act<activation>(u[i]) * u[hidden + i];
  } else {
    for (int64_t i = 0; i < hidden; ++i) a[i] = act<activation>(u[i]);
  }
}

/// Computes du [parts, hidden] from the gradient of a [hidden].
template <ExpertActivation activation>
void activate_grad(int64_t hidden, const float* u, const float* da, float weight, float* du) {
  for (int64_t i = 0; i < hidden; ++i) {
    const float g = weight * da[i];
    if constexpr (activation == ExpertActivation::clamped_swiglu) {
      const float gate = std::min(u[i], kClampLimit), s = sigmoid_of(kClampRate * gate);
      const float up = std::clamp(u[hidden + i], -kClampLimit, kClampLimit);
      const float of_gate = g * (up + 1) * s * (1 + kClampRate * gate * (1 - s)), of_up = g * gate * s;
      du[i] = u[i] <= kClampLimit ? of_gate : 0.0f;
      du[hidden + i] = std::abs(u[hidden + i]) <= kClampLimit ? of_up : 0.0f;
    } else if constexpr (is_gated(activation)) {
      du[i] = g * u[hidden + i] * slope<activation>(u[i]);
      du[hidden + i] = g * act<activation>(u[i]);
    } else {
      du[i] = g * slope<activation>(u[i]);
    }
  }
}

/// Calls f with the activation as a compile-time constant.
template <class F>
void with_activation(ExpertActivation activation, const F& f) {
  using enum ExpertActivation;
  switch (activation) {
    case clamped_swiglu:
      return f(std::integral_constant<ExpertActivation, clamped_swiglu>());
    case swiglu:
      return f(std::integral_constant<ExpertActivation, swiglu>());
    case geglu:
      return f(std::integral_constant<ExpertActivation, geglu>());
    case silu:
      return f(std::integral_constant<ExpertActivation, silu>());
    case gelu:
      return f(std::integral_constant<ExpertActivation, gelu>());
    case relu:
      return f(std::integral_constant<ExpertActivation, relu>());
  }
}

constexpr int kTransposedLanes = 8;
typedef float TransposedVec __attribute__((vector_size(4 * kTransposedLanes), aligned(4), may_alias));

/// to[c, r] = from[r, c] of an 8 x 8 block, in three rounds that each interleave the halves of the block.
inline void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row) {
  typedef float Vec __attribute__((vector_size(4 * kTransposedLanes)));
  Vec v[kTransposedLanes];
  for (int i = 0; i < kTransposedLanes; ++i) v[i] = *reinterpret_cast<const TransposedVec*>(from + i * from_row);
#pragma GCC unroll 3
  for (int round = kTransposedLanes; round > 1; round /= 2) {
    Vec next[kTransposedLanes];
#pragma GCC unroll 4
    for (int i = 0; i < kTransposedLanes / 2; ++i) {
      next[2 * i] = __builtin_shufflevector(v[i], v[i + kTransposedLanes / 2], 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(v[i], v[i + kTransposedLanes / 2], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTransposedLanes; ++i) v[i] = next[i];
  }
  for (int i = 0; i < kTransposedLanes; ++i) *reinterpret_cast<TransposedVec*>(to + i * to_row) = v[i];
}

/// Transposes from [rows, columns] into to [columns, rows].
void transpose_weight(const float* from, int64_t rows, int64_t columns, float* to) {
  const int64_t whole_rows = rows / kTransposedLanes * kTransposedLanes,
                whole_columns = columns / kTransposedLanes * kTransposedLanes;
  for (int64_t c = 0; c < whole_columns; c += kTransposedLanes)
    for (int64_t r = 0; r < whole_rows; r += kTransposedLanes)
      transpose_block(from + r * columns + c, columns, to + c * rows + r, rows);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
}

/// The rows, threads and scratch memory of both kernels.
class ExpertsKernel {
 public:
  /// `floats_of_row`: scratch of each row; `floats_of_thread`: besides that of products.
  ExpertsKernel(const KernelCall& call, const ExpertsSize& size, int64_t floats_of_row, int64_t floats_of_thread)
      : n_(size),
        rows_(size),
        activation_(expert_activation(call.attrs)),
        tiles_(cpu::tiles_for_blocks()),
        scratch_(cpu::scratch_of_this_thread()) {
    const int64_t worth = n_.rows * n_.inner() * n_.features / kWorthAnExpertThread;
    threads_ = static_cast<int>(std::clamp<int64_t>(worth, 1, call.threads));
    product_at_ = floats_of_row * n_.rows + threads_ * floats_of_thread;
    product_floats_ = floats_of_products();
    scratch_->reserve(product_at_ + threads_ * product_floats_);
  }

 protected:
  /// Calls f(task, thread) for each task of rows.
  template <class F>
  void for_each_task(const F& f) const {
    const auto count = static_cast<int64_t>(rows_.tasks.size());
    for_each(count, [&](int64_t i, int thread) { f(rows_.tasks[static_cast<size_t>(i)], thread); });
  }

  /// Calls f(i, thread) for i in [0, count); each thread takes consecutive ones.
  template <class F>
  void for_each(int64_t count, const F& f) const {
    cpu::run_parts(threads_, [&](int thread) {
      for (int64_t i = count * thread / threads_; i < count * (thread + 1) / threads_; ++i) f(i, thread);
    });
  }

  /// c[m, n] (+)= op(a) op(b), with contiguous rows of a and b.
  void multiply(cpu::Product p, int thread) const {
    p.a_row = p.transpose_a ? p.a_row : p.k;
    p.b_row = p.transpose_b ? p.k : p.n;
    p.c_row = p.n;
    tiles_.run(p, scratch_->data() + product_at_ + thread * product_floats_);
  }

  /// Copies to to[i] the row of `from` of the token to which row i of the task belongs.
  void gather(const float* from, const ExpertTask& task, float* to) const {
    for (int64_t i = 0; i < task.count; ++i)
      std::copy_n(from + rows_.token(task.first + i) * n_.features, n_.features, to + i * n_.features);
  }

  /// y[t] = the sum of the rows of `from` that belong to token t, each times its weight. `weights` null: all weights
  /// are 1.
  void combine(const float* from, const float* weights, float* y) const {
    for_each(n_.tokens, [&](int64_t t, int) {
      float* const to = y + t * n_.features;
      std::fill_n(to, n_.features, 0.0f);
      for (int64_t p = t * n_.top_k; p < (t + 1) * n_.top_k; ++p) {
        const int64_t row = rows_.row_of[static_cast<size_t>(p)];
        if (row < 0) continue;
        const float weight = weights == nullptr ? 1.0f : weights[p];
        for (int64_t i = 0; i < n_.features; ++i) to[i] += weight * from[row * n_.features + i];
      }
    });
  }

  ExpertsSize n_;
  ExpertRows rows_;
  ExpertActivation activation_;
  int threads_ = 1;

  float* scratch() const { return scratch_->data(); }

 private:
  int64_t floats_of_products() const {
    const int64_t inner = n_.inner(), d = n_.features, h = n_.hidden, most = std::max<int64_t>(1, n_.rows);
    int64_t floats = 0;
    const auto need = [&](cpu::Product p) { floats = std::max(floats, tiles_.scratch_floats(p)); };
    need({.m = kRowsOfTask, .n = inner, .k = d, .transpose_b = true});
    need({.m = kRowsOfTask, .n = d, .k = h, .transpose_b = true});
    need({.m = kRowsOfTask, .n = h, .k = d});
    need({.m = kRowsOfTask, .n = d, .k = inner});
    need({.m = kLinesOfTask, .n = d, .k = most, .transpose_a = true});
    need({.m = kLinesOfTask, .n = h, .k = most, .transpose_a = true});
    return (floats + 15) / 16 * 16;
  }

  const cpu::Tiles& tiles_;
  std::shared_ptr<cpu::Scratch> scratch_;
  int64_t product_at_ = 0, product_floats_ = 0;
};

/// Points to the operands of both kernels.
struct ExpertOperands {
  const float *x, *weights;
  const int32_t* ids;
  const float *up, *down;
  const float *up_bias = nullptr, *down_bias = nullptr;  ///< null: no biases, or another rank adds them

  ExpertOperands(const KernelCall& call, size_t first)
      : x(call.in[first].as<float>()),
        weights(call.in[first + 1].as<float>()),
        ids(call.in[first + 2].as<int32_t>()),
        up(call.in[first + 3].as<float>()),
        down(call.in[first + 4].as<float>()) {}
};

ExpertsSize size_of_call(const KernelCall& call, size_t first, const TensorArg& kept) {
  ExpertsSize n = ExpertsSize::of(call.in[first + 2].shape, call.in[first + 3].shape, kept.shape);
  n.first = call.in[first + 3].offset[0];
  n.adds_down_bias = call.in[first + 3].offset[2] == 0;
  return n;
}

/// to[i] += bias[i]
void add_bias_row(int64_t count, const float* bias, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += bias[i];
}

class ExpertsForward : ExpertsKernel {
 public:
  ExpertsForward(const KernelCall& call, const ExpertsSize& n)
      : ExpertsKernel(call, n, n.features,
                      kRowsOfTask * (n.features + n.hidden) + (n.parts + 1) * n.hidden * n.features),
        in_(call, 0),
        y_(call.out[0].as<float>()),
        kept_(call.out[1].as<float>()),
        transposed_(static_cast<size_t>(threads_)) {
    if (call.in.size() < 7) return;
    in_.up_bias = call.in[5].as<float>();
    if (n.adds_down_bias) in_.down_bias = call.in[6].as<float>();
  }

  void operator()() {
    rows_.sort(in_.ids);
    std::fill(transposed_.begin(), transposed_.end(), -1);
    with_activation(activation_, [&](auto activation) {
      for_each_task([&](const ExpertTask& task, int thread) { run_task<activation()>(task, thread); });
    });
    combine(scratch(), in_.weights, y_);
  }

 private:
  template <ExpertActivation activation>
  void run_task(const ExpertTask& task, int thread) {
    const int64_t d = n_.features, h = n_.hidden, inner = n_.inner();
    float* const xs = scratch() + n_.rows * d + thread * (kRowsOfTask * (d + h) + (n_.parts + 1) * h * d);
    float *const a = xs + kRowsOfTask * d, *const u = kept_ + task.first * inner;
    gather(in_.x, task, xs);
    const ExpertWeights w = weights_of(task.expert, a + kRowsOfTask * h, thread);
    multiply({.m = task.count, .n = inner, .k = d, .a = xs, .b = w.up, .c = u, .transpose_b = !w.transposed}, thread);
    for (int64_t i = 0; i < task.count; ++i) {
      if (in_.up_bias != nullptr) add_bias_row(inner, in_.up_bias + task.expert * inner, u + i * inner);
      activate<activation>(h, u + i * inner, a + i * h);
    }
    float* const y = scratch() + task.first * d;
    multiply({.m = task.count, .n = d, .k = h, .a = a, .b = w.down, .c = y, .transpose_b = !w.transposed}, thread);
    for (int64_t i = 0; i < task.count && in_.down_bias != nullptr; ++i)
      add_bias_row(d, in_.down_bias + task.expert * d, y + i * d);
  }

  struct ExpertWeights {
    const float *up, *down;
    bool transposed;
  };

  /// The weights of an expert, transposed in the memory of the thread if enough rows use them.
  ExpertWeights weights_of(int64_t expert, float* memory, int thread) {
    const int64_t d = n_.features, h = n_.hidden, inner = n_.inner();
    const float *const up = in_.up + expert * inner * d, *const down = in_.down + expert * d * h;
    if (rows_.begin(expert + 1) - rows_.begin(expert) < kRowsWorthTransposing) return {up, down, false};
    if (std::exchange(transposed_[static_cast<size_t>(thread)], expert) != expert) {
      transpose_weight(up, inner, d, memory);
      transpose_weight(down, d, h, memory + inner * d);
    }
    return {memory, memory + inner * d, true};
  }

  ExpertOperands in_;
  float *y_, *kept_;
  std::vector<int64_t> transposed_;  ///< by thread: the expert whose weights its memory has; -1: none
};

class ExpertsBackward : ExpertsKernel {
 public:
  ExpertsBackward(const KernelCall& call, const ExpertsSize& n)
      : ExpertsKernel(call, n, 3 * n.features + n.hidden + n.inner(), kRowsOfTask * n.hidden),
        in_(call, 1),
        dy_(call.in[0].as<float>()),
        kept_(call.in[6].as<float>()),
        dx_(call.out[0].as<float>()),
        dweights_(call.out[1].as<float>()),
        dup_(call.out[2].as<float>()),
        ddown_(call.out[3].as<float>()),
        adds_up_(call.out[2].accumulate),
        adds_down_(call.out[3].accumulate) {
    if (call.in.size() < 8) return;
    if (n.adds_down_bias) in_.down_bias = call.in[7].as<float>();
    dup_bias_ = call.out[4].as<float>(), adds_up_bias_ = call.out[4].accumulate;
    ddown_bias_ = call.out[5].as<float>(), adds_down_bias_ = call.out[5].accumulate;
  }

  void operator()() {
    rows_.sort(in_.ids);
    std::fill_n(dweights_, n_.tokens * n_.top_k, 0.0f);
    with_activation(activation_, [&](auto activation) {
      for_each_task([&](const ExpertTask& task, int thread) { run_task<activation()>(task, thread); });
    });
    combine(dxs(), nullptr, dx_);
    weight_gradients();
  }

 private:
  // Scratch memory: for each row x, dy (then times its weight), dx, a and du; for each thread da.
  float* xs() const { return scratch(); }
  float* dys() const { return xs() + n_.rows * n_.features; }
  float* dxs() const { return dys() + n_.rows * n_.features; }
  float* as() const { return dxs() + n_.rows * n_.features; }
  float* dus() const { return as() + n_.rows * n_.hidden; }
  float* da(int thread) const { return dus() + n_.rows * n_.inner() + thread * kRowsOfTask * n_.hidden; }

  /// The gradients for rows [task.first, task.first + task.count) of one expert: dx and du per row, the gradients of
  /// the weights of its pairs, and dy times these weights, from which the gradients of the matrices are summed
  /// afterwards.
  template <ExpertActivation activation>
  void run_task(const ExpertTask& task, int thread) const {
    const int64_t d = n_.features, h = n_.hidden, inner = n_.inner();
    float *const dy = dys() + task.first * d, *const du = dus() + task.first * inner;
    gather(in_.x, task, xs() + task.first * d);
    gather(dy_, task, dy);
    const float* const down = in_.down + task.expert * d * h;
    multiply({.m = task.count, .n = h, .k = d, .a = dy, .b = down, .c = da(thread)}, thread);
    for (int64_t i = 0; i < task.count; ++i) {
      const int64_t pair = rows_.pair_of[static_cast<size_t>(task.first + i)];
      const float *const u = kept_ + (task.first + i) * inner, *const slopes = da(thread) + i * h;
      float* const a = as() + (task.first + i) * h;
      activate<activation>(h, u, a);
      activate_grad<activation>(h, u, slopes, in_.weights[pair], du + i * inner);
      double dot = cpu::sum(h, [=](int64_t j) { return double{slopes[j]} * a[j]; });
      const float* const bias = in_.down_bias == nullptr ? nullptr : in_.down_bias + task.expert * d;
      const float* const of_row = dy + i * d;
      if (bias != nullptr) dot += cpu::sum(d, [=](int64_t j) { return double{of_row[j]} * bias[j]; });
      dweights_[pair] = static_cast<float>(dot);
      for (int64_t j = 0; j < d; ++j) dy[i * d + j] *= in_.weights[pair];
    }
    const float* const up = in_.up + task.expert * inner * d;
    multiply({.m = task.count, .n = d, .k = inner, .a = du, .b = up, .c = dxs() + task.first * d}, thread);
  }

  /// c[lines, columns] (+)= a[rows, lines]^T b[rows, columns], over the rows of each expert.
  void contract_rows(const float* a, int64_t lines, const float* b, int64_t columns, float* c, bool adds) const {
    const int64_t blocks = (lines + kLinesOfTask - 1) / kLinesOfTask;
    for_each(n_.experts * blocks, [&](int64_t task, int thread) {
      const int64_t expert = task / blocks, first = task % blocks * kLinesOfTask;
      const int64_t count = std::min(kLinesOfTask, lines - first), row = rows_.begin(expert);
      const int64_t rows = rows_.begin(expert + 1) - row;
      float* const to = c + (expert * lines + first) * columns;
      if (rows == 0 && !adds) std::fill_n(to, count * columns, 0.0f);
      if (rows == 0) return;
      cpu::Product p{
          .m = count, .n = columns, .k = rows, .a = a + row * lines + first, .b = b + row * columns, .c = to};
      p.transpose_a = true;
      p.accumulate = adds;
      p.a_row = lines;
      multiply(p, thread);
    });
  }

  void weight_gradients() const {
    contract_rows(dus(), n_.inner(), xs(), n_.features, dup_, adds_up_);
    contract_rows(dys(), n_.features, as(), n_.hidden, ddown_, adds_down_);
    if (dup_bias_ == nullptr) return;
    sum_rows(dus(), n_.inner(), true, dup_bias_, adds_up_bias_);
    sum_rows(dys(), n_.features, n_.adds_down_bias, ddown_bias_, adds_down_bias_);
  }

  /// to [experts, columns] (+)= the sum of each expert's rows, or 0 if another rank has the sums.
  void sum_rows(const float* rows, int64_t columns, bool is_here, float* to, bool adds) const {
    for_each(n_.experts, [&](int64_t expert, int) {
      float* const sums = to + expert * columns;
      if (!adds) std::fill_n(sums, columns, 0.0f);
      for (int64_t row = rows_.begin(expert); is_here && row < rows_.begin(expert + 1); ++row)
        add_bias_row(columns, rows + row * columns, sums);
    });
  }

  ExpertOperands in_;
  const float *dy_, *kept_;
  float *dx_, *dweights_, *dup_, *ddown_;
  bool adds_up_, adds_down_;
  float *dup_bias_ = nullptr, *ddown_bias_ = nullptr;
  bool adds_up_bias_ = false, adds_down_bias_ = false;
};

}  // namespace

CpuKernel prepare_experts(const KernelCall& call) {
  return [run = std::make_shared<ExpertsForward>(call, size_of_call(call, 0, call.out[1]))] { (*run)(); };
}

CpuKernel prepare_experts_grad(const KernelCall& call) {
  return [run = std::make_shared<ExpertsBackward>(call, size_of_call(call, 1, call.in[6]))] { (*run)(); };
}

}  // namespace trainctl
