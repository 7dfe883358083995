// Times kernels of the CPU. With one thread, the thread's own clock is used: time that other programs take does not
// count.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/base/text.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/runtime/measure/kernel_timer.h"
#include "engine/runtime/measure/sampling.h"

namespace trainctl {
namespace {

constexpr int64_t kTimedKernelAlignment = 256;
constexpr int64_t kUnknownCache = int64_t{32} << 20;

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(": ") + 2));
  }
  return "this processor";
}

class CpuKernelTimer final : public KernelTimer {
 public:
  explicit CpuKernelTimer(int threads) : threads_(threads), now_(threads == 1 ? thread_seconds : wall_seconds) {
    cpu::start_workers(threads);
  }

  std::string device() const override {
    return std::to_string(threads_) + (threads_ == 1 ? " thread of " : " threads of ") + processor_name();
  }

  int64_t cache_bytes() const override {
    const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? bytes : kUnknownCache;
  }

  bool has_kernel(std::string_view name) const override { return find_cpu_kernel(name) != nullptr; }

  std::byte* allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kTimedKernelAlignment));
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kTimedKernelAlignment, size));
    if (memory == nullptr) throw EnvError("cannot allocate " + format_bytes(bytes) + " for timing a kernel");
    blocks_.emplace_back(memory, std::free);
    std::memset(memory, 0, size);
    return memory;
  }

  void clear() override { blocks_.clear(); }
  void write(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }

  std::vector<double> time(std::string_view name, std::span<const KernelCall> calls,
                           const SampleOptions& options) override {
    std::vector<CpuKernel> kernels;
    for (KernelCall call : calls) {
      call.threads = threads_;
      kernels.push_back(find_cpu_kernel(name)->prepare(call));
    }
    size_t next = 0;
    return take_samples(
        [&](int64_t runs) {
          const double start = now_();
          for (int64_t i = 0; i < runs; ++i) {
            kernels[next]();
            if (++next == kernels.size()) next = 0;
          }
          return now_() - start;
        },
        options);
  }

  double memory_rate(int64_t bytes, const SampleOptions& options) override {
    const int64_t words = bytes / 8;
    auto* a = reinterpret_cast<uint64_t*>(allocate(bytes));
    auto* b = reinterpret_cast<uint64_t*>(allocate(bytes));
    std::vector<uint64_t> sums(static_cast<size_t>(threads_));
    const auto read = [&](int part, int64_t begin, int64_t end) {
      uint64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += a[i];
      sums[static_cast<size_t>(part)] += sum;
    };
    const auto copy = [&](int, int64_t begin, int64_t end) {
      std::memcpy(b + begin, a + begin, static_cast<size_t>(end - begin) * 8);
    };
    const auto update = [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) b[i] += 3;
    };
    const auto twice = 2.0 * static_cast<double>(bytes);
    return std::max({static_cast<double>(bytes) / least_seconds(words, read, options),
                     twice / least_seconds(words, copy, options), twice / least_seconds(words, update, options)});
  }

 private:
  using Block = std::unique_ptr<std::byte, decltype(&std::free)>;

  /// Divides all words among the threads, and calls body(part, begin, end) on each.
  template <class Body>
  double least_seconds(int64_t words, const Body& body, const SampleOptions& options) {
    const int64_t each = words / threads_;
    const auto part = [&](int i) { body(i, each * i, i + 1 == threads_ ? words : each * (i + 1)); };
    const std::vector<double> seconds = take_samples(
        [&](int64_t runs) {
          const double start = now_();
          for (int64_t i = 0; i < runs; ++i) cpu::run_parts(threads_, part);
          return now_() - start;
        },
        options);
    return *std::min_element(seconds.begin(), seconds.end());
  }

  const int threads_;
  double (*const now_)();
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<KernelTimer> make_cpu_kernel_timer(int threads) { return std::make_unique<CpuKernelTimer>(threads); }

Spread spread_of(std::vector<double> samples) {
  check(!samples.empty(), "a spread needs at least one sample");
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double part) {
    return samples[static_cast<size_t>(std::lround(part * static_cast<double>(samples.size() - 1)))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

}  // namespace trainctl
