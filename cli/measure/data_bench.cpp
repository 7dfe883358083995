// Measures how fast a job's samples can be read, decoded and transformed, and which stage takes the time.
#include "cli/measure/data_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/base/text.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/order.h"

namespace trainctl {
namespace {

using Clock = std::chrono::steady_clock;

/// The samples of one epoch in order, again and again.
class Samples {
 public:
  Samples(const DatasetSpec& spec, const Dataset& set, uint64_t seed) : order_(spec, set, seed) {}

  std::pair<int64_t, uint64_t> next() {
    const std::lock_guard lock(mutex_);
    if (row_ == batch_.size()) {
      batch_ = order_.batch(step_ / order_.steps_per_epoch(), step_ % order_.steps_per_epoch());
      ++step_;
      row_ = 0;
    }
    const size_t row = row_++;
    return {batch_[row], order_.passes()[row]};
  }

 private:
  std::mutex mutex_;
  SampleOrder order_;
  std::span<const int64_t> batch_;
  size_t row_ = 0;
  int64_t step_ = 0;
};

/// One worker's memory for a sample, as read and as loaded.
class Reader {
 public:
  /// `on_gpu`: bytes that a GPU transforms need no conversion here.
  Reader(const Dataset& set, uint64_t seed, bool on_gpu) : set_(set), seed_(seed), on_gpu_(on_gpu) {
    set.prepare(state_);
    for (const SampleField& field : set.fields()) {
      read_.emplace_back(static_cast<size_t>(field.bytes()));
      to_.push_back(read_.back().data());
      loaded_.emplace_back(static_cast<size_t>(field.elements() * byte_size(DType::f32)));
      const DType loaded_as = field.is_integer ? DType::i32 : DType::f32;
      if (is_same(field.type, loaded_as))
        to_.back() = loaded_.back().data();  // a loader reads directly into its destination
    }
  }

  void read(int64_t sample, uint64_t pass) {
    state_.rng = SampleRng(seed_, pass, sample);
    set_.read(sample, state_, to_);
    const StageTimer timer(state_.seconds, ReadStage::copy);
    for (size_t i = 0; i < to_.size(); ++i) {
      const SampleField& field = set_.fields()[i];
      if (to_[i] == loaded_[i].data() || (on_gpu_ && may_load_bytes(field))) continue;
      load_field(field, to_[i], field.is_integer ? DType::i32 : DType::f32, loaded_[i].data());
    }
  }
  const StageSeconds& seconds() const { return state_.seconds; }

 private:
  const Dataset& set_;
  uint64_t seed_;
  bool on_gpu_;
  ReadState state_;
  std::vector<std::vector<std::byte>> read_, loaded_;
  std::vector<void*> to_;
};

/// Samples per second of `workers` threads that read for `seconds`, and the time of each stage.
DataBenchRow bench_workers(const Dataset& set, Samples& samples, const JobSpec& job, int workers, double seconds) {
  DataBenchRow row;
  row.workers = workers;
  std::mutex mutex;
  std::exception_ptr error;
  std::atomic<bool> is_over = false;
  std::atomic<int64_t> read = 0;
  const Clock::time_point start = Clock::now(), end = start + std::chrono::duration_cast<Clock::duration>(
                                                                  std::chrono::duration<double>(seconds));
  std::vector<std::thread> threads;
  for (int i = 0; i < workers; ++i)
    threads.emplace_back([&] {
      try {
        Reader reader(set, job.seed, job.launch.device == Device::cuda);
        // A worker finishes the sample that it has begun, and every worker reads at least one.
        do {
          const auto [sample, pass] = samples.next();
          reader.read(sample, pass);
          ++read;
        } while (!is_over && Clock::now() < end);
        const std::lock_guard lock(mutex);
        row.stages.add(reader.seconds());
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        is_over = true;
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  row.samples = read;
  row.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return row;
}

}  // namespace

DataBench bench_data(const JobSpec& job, int most_workers, double seconds) {
  DatasetSpec spec = job.dataset;
  if (spec.has_source() || spec.type == "mnist") spec.cache = "none";
  const std::unique_ptr<Dataset> set = open_dataset(spec, job.seed);
  DataBench bench;
  bench.samples = set->size();
  std::vector<std::string> fields;
  for (const SampleField& field : set->fields())
    fields.push_back(fmt::format("{} {} of {}", field.name, to_string(field.shape),
                                 field.is_integer                                             ? "i32"
                                 : job.launch.device == Device::cuda && may_load_bytes(field) ? "u8"
                                                                                              : "f32"));
  bench.fields = join(fields);
  Samples samples(spec, *set, job.seed);
  for (int workers = 1;; workers = std::min(2 * workers, most_workers)) {
    bench.rows.push_back(bench_workers(*set, samples, job, workers, seconds));
    if (workers == most_workers) return bench;
  }
}

}  // namespace trainctl
