// Counts and balances the loads of the experts on CPUs; see balance.cpp.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/moe/expert_load.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastCountedScores = 16384;  ///< below this, waking a thread takes longer than the work
constexpr int kMostLoadBlocks = 16;

/// Sums over a row of logits.
struct RouterRow {
  float log_sum = 0;  ///< logarithm of the sum of e^logit
  float total = 0;    ///< sum of the scores, by which sigmoids are divided
};

/// Computes the probabilities p [n] of a row of logits, and the sigmoids s [n] if `s` is not null.
RouterRow probabilities_of(bool sigmoid, int64_t n, const float* logits, float* p, float* s = nullptr) {
  const float top = *std::max_element(logits, logits + n);
  float sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += p[e] = cpu::exp(logits[e] - top);
  RouterRow row{top + std::log(sum), sum};
  if (sigmoid) {
    row.total = 0;
    for (int64_t e = 0; e < n; ++e) row.total += p[e] = 1.0f / (1.0f + cpu::exp(-logits[e]));
    if (s != nullptr) std::copy_n(p, n, s);
  }
  for (int64_t e = 0; e < n; ++e) p[e] /= row.total;
  return row;
}

int parts_of_rows(int64_t rows, int64_t experts, int threads) {
  return static_cast<int>(std::clamp<int64_t>(rows * experts / kLeastCountedScores, 1, threads));
}

/// The sums of a block of rows.
struct LoadSums {
  std::vector<double> sums;
  std::vector<float> p;
};

/// Adds one token to the sums of the load: its experts, probabilities, entropy and squared log-sum.
void count_row(const LoadPlaces& at, bool sigmoid, const float* logits, const int32_t* ids, const int32_t* kept,
               int64_t k, LoadSums& to) {
  const auto add = [&](int64_t place, double value) { to.sums[static_cast<size_t>(place)] += value; };
  const RouterRow row = probabilities_of(sigmoid, at.experts, logits, to.p.data());
  double entropy = 0;
  for (int64_t e = 0; e < at.experts; ++e) {
    const double p = to.p[static_cast<size_t>(e)];
    add(at.probability(e), p);
    if (p > 0) entropy -= p * std::log(p);
  }
  add(at.entropy(), entropy);
  add(at.square(), double{row.log_sum} * row.log_sum);
  for (int64_t j = 0; j < k; ++j) {
    add(ids[j], 1);
    if (kept != nullptr && kept[j] < 0) add(at.dropped(), 1);
  }
}

/// Computes dlogits of one row: the gradients of the balance loss and of the z-loss. `scale`: factor of the gradients.
void balance_row(const BalanceTerm& term, float scale, const float* logits, const float* load, float* p, float* s,
                 float* dlogits) {
  const int64_t n = term.experts;
  const RouterRow row = probabilities_of(term.sigmoid, n, logits, p, s);
  const auto tokens = static_cast<float>(term.rows);
  const float share = scale * term.coefficient / tokens, pair = term.per_pair();
  float mean = 0;
  if (load != nullptr)
    for (int64_t e = 0; e < n; ++e) mean += pair * load[e] * p[e];
  const float square = scale * 2 * term.z_loss / tokens * row.log_sum;
  for (int64_t e = 0; e < n; ++e) {
    float d = load == nullptr ? 0.0f : share * p[e] * (pair * load[e] - mean);
    if (term.sigmoid) d *= 1 - s[e];
    dlogits[e] = d + square * cpu::exp(logits[e] - row.log_sum);
  }
}

}  // namespace

/// Computes load [LoadPlaces::size()]. Each block of rows has its own sums, which are then added in order. The blocks
/// do not depend on the number of threads, so the bits of the result do not either.
CpuKernel prepare_expert_load(const KernelCall& call) {
  const int64_t n = call.in[0].shape.back(), k = call.in[1].shape.back(), rows = call.in[0].size() / n;
  const bool sigmoid = call.attrs.text("score", "softmax") == "sigmoid";
  const LoadPlaces at{n};
  const int64_t blocks = parts_of_rows(rows, n, kMostLoadBlocks);
  auto all = std::make_shared<std::vector<LoadSums>>(static_cast<size_t>(blocks));
  for (LoadSums& each : *all) {
    each.sums.resize(static_cast<size_t>(at.size()));
    each.p.resize(static_cast<size_t>(n));
  }
  return [=, threads = call.threads, logits = call.in[0].as<float>(), ids = call.in[1].as<int32_t>(),
          kept = call.in.size() > 2 ? call.in[2].as<int32_t>() : nullptr, load = call.out[0].as<float>()] {
    cpu::each_row(threads, blocks, cpu::kElementsPerThread, [&](int64_t block) {
      LoadSums& to = (*all)[static_cast<size_t>(block)];
      std::fill(to.sums.begin(), to.sums.end(), 0.0);
      for (int64_t r = rows * block / blocks; r < rows * (block + 1) / blocks; ++r)
        count_row(at, sigmoid, logits + r * n, ids + r * k, kept == nullptr ? nullptr : kept + r * k, k, to);
    });
    for (int64_t i = 0; i < at.size(); ++i) {
      double sum = 0;
      for (const LoadSums& each : *all) sum += each.sums[static_cast<size_t>(i)];
      load[i] = static_cast<float>(sum);
    }
  };
}

CpuKernel prepare_sequence_load(const KernelCall& call) {
  const int64_t n = call.attrs.integer("experts"), sequences = call.in[0].shape[0];
  const int64_t pairs = sequences == 0 ? 0 : call.in[0].size() / sequences;
  return [=, ids = call.in[0].as<int32_t>(), load = call.out[0].as<float>()] {
    std::fill_n(load, sequences * n, 0.0f);
    for (int64_t b = 0; b < sequences; ++b)
      for (int64_t i = b * pairs; i < (b + 1) * pairs; ++i) load[b * n + ids[i]] += 1;
  };
}

CpuKernel prepare_count_load(const KernelCall& call) {
  return [load = call.in[0].as<float>(), state = call.in[1].as<float>(), n = call.in[0].size(),
          is_first = call.micro_batch == 0] {
    for (int64_t i = 0; i < n; ++i) state[i] = is_first ? load[i] : state[i] + load[i];
  };
}

CpuKernel prepare_balance_bias(const KernelCall& call) {
  return [bias = call.in[0].as<float>(), load = call.in[1].as<float>(), now = call.out[0].as<float>(),
          n = call.in[0].size(), speed = static_cast<float>(call.attrs.number("speed", 0.001)),
          updates = call.micro_batch == 0] {
    double pairs = 0;
    for (int64_t e = 0; e < n; ++e) pairs += double{load[e]};
    for (int64_t e = 0; e < n; ++e) {
      const double missing = pairs - double{load[e]} * static_cast<double>(n);
      if (updates && missing != 0) bias[e] += missing > 0 ? speed : -speed;
      now[e] = bias[e];
    }
  };
}

CpuKernel prepare_balance(const KernelCall& call) {
  return [from = call.in[0].as<float>(), to = call.out[0].as<float>(), n = call.out[0].size()] {
    std::copy_n(from, n, to);
  };
}

CpuKernel prepare_balance_grad(const KernelCall& call) {
  const int64_t n = call.in[0].shape.back(), rows = call.in[0].size() / n;
  const BalanceTerm term = BalanceTerm::of(call.attrs, n);
  const int64_t of_sequence = std::max<int64_t>(1, rows / std::max<int64_t>(1, call.in[0].shape[0]));
  const int parts = parts_of_rows(rows, n, call.threads);
  auto buffers = std::make_shared<std::vector<float>>(static_cast<size_t>(2 * n * parts));
  return [=, logits = call.in[0].as<float>(), load = call.in.size() > 1 ? call.in[1].as<float>() : nullptr,
          dlogits = call.out[0].as<float>(), scalars = call.scalars] {
    cpu::run_parts(parts, [&](int part) {
      float* const p = buffers->data() + 2 * n * part;
      for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
        const float* of_row = load;
        if (load != nullptr && term.by_sequence) of_row += r / of_sequence * n;
        balance_row(term, scalars->loss_scale, logits + r * n, of_row, p, p + n, dlogits + r * n);
      }
    });
  };
}

CpuKernel prepare_drop_pairs(const KernelCall& call) {
  const int64_t n = call.attrs.integer("experts"), most = call.attrs.integer("most"), sequences = call.in[0].shape[0];
  const int64_t pairs = sequences == 0 ? 0 : call.in[0].size() / sequences;
  auto counts = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(n));
  return [=, ids = call.in[0].as<int32_t>(), kept = call.out[0].as<int32_t>()] {
    for (int64_t b = 0; b < sequences; ++b) {
      std::fill(counts->begin(), counts->end(), 0);
      for (int64_t i = b * pairs; i < (b + 1) * pairs; ++i)
        kept[i] = (*counts)[static_cast<size_t>(ids[i])]++ < most ? ids[i] : -1;
    }
  };
}

}  // namespace trainctl
