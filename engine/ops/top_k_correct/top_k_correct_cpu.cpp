// The label's class is among the k largest if fewer than k others are ahead of it. Nothing is sorted.
#include <algorithm>
#include <array>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/softmax_cross_entropy/targets.h"

namespace trainctl {
namespace {

constexpr int kMostThreads = 64;
constexpr int64_t kElementsAThread = 1 << 15;

int64_t ranked_class_of(int32_t label, int64_t classes) {
  if (label < 0 || label >= classes) {
    throw EnvError("top_k_correct: the data contains label " + std::to_string(label) +
                   ", but the predictions have classes 0 to " + std::to_string(classes - 1) +
                   "\n  increase the units of the last layer, or check the labels");
  }
  return label;
}

/// The number of classes that rank before the class of the label. A NaN ranks before every number. If the prediction of
/// the label itself is NaN, every class ranks before it.
int64_t ahead(const float* x, int64_t classes, int64_t label) {
  const float own = x[label];
  int32_t before = 0, after = 0;
  for (int64_t i = 0; i < label; ++i) before += !(x[i] < own);
  for (int64_t i = label + 1; i < classes; ++i) after += !(x[i] <= own);
  return int64_t{before} + after;
}

CpuKernel prepare_top_k_correct(const KernelCall& call) {
  const int64_t classes = call.in[0].shape.back(), rows = call.in[1].size();
  const int64_t wanted = std::max<int64_t>(1, call.in[0].size() / kElementsAThread);
  const int threads = static_cast<int>(std::min({int64_t{call.threads}, int64_t{kMostThreads}, wanted}));
  return [=, x = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(), correct = call.out[0].as<float>(),
          add = call.out[0].accumulate, k = call.attrs.integer("k", 1), targets = Targets::of(call.attrs)] {
    for (int64_t r = 0; r < rows; ++r)
      // Throws here for an invalid label, since the threads below must not throw.
      if (targets.counts(labels[r])) ranked_class_of(labels[r], classes);
    std::array<int64_t, kMostThreads> counts{};
    cpu::run_parts(threads, [&](int part) {
      int64_t count = 0;
      for (int64_t r = rows * part / threads; r < rows * (part + 1) / threads; ++r)
        if (targets.counts(labels[r])) count += ahead(x + r * classes, classes, labels[r]) < k;
      counts[static_cast<size_t>(part)] = count;
    });
    int64_t total = 0;
    for (int part = 0; part < threads; ++part) total += counts[static_cast<size_t>(part)];
    *correct = (add ? *correct : 0.0f) + static_cast<float>(total);
  };
}

}  // namespace

extern const CpuKernels top_k_correct_cpu = {{"top_k_correct", prepare_top_k_correct}};

}  // namespace trainctl
