// Prepares the next steps' batches with a pool of workers while the current step trains.
#include "engine/train/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <ranges>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/runtime/comm/batch_board.h"
#include "engine/train/data/elements.h"

namespace trainctl {
namespace {

HostBlock allocate_on_heap(int64_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
  return {memory, memory->data()};
}

/// Bytes of rows that a worker claims at a time: enough that claiming costs little compared to reading.
constexpr int64_t kClaimedBytes = int64_t{64} << 10;
/// Interval at which the waiting trainer checks for a worker that hangs.
constexpr std::chrono::milliseconds kLook{100};
/// Fraction of timeout_seconds after which a worker counts as hanging. After the whole timeout the launcher ends the
/// rank, but the launcher cannot say which file was slow.
constexpr double kHangFraction = 0.9;
/// Most batches that autotune may read ahead.
constexpr int64_t kMostAhead = 16;
/// Interval at which a worker requests a batch that another worker may abandon.
constexpr std::chrono::milliseconds kAskAgain{5};

/// The limits within which autotune may choose. Values that the job sets are not changed.
LoadLimits load_limits(const DatasetSpec& spec, int most_workers, int64_t batch_bytes) {
  const int64_t memory = spec.max_memory > 0 ? spec.max_memory : most_cached_bytes();
  const int64_t ahead = std::clamp<int64_t>(memory / std::max<int64_t>(batch_bytes, 1), 1, kMostAhead);
  return {spec.workers > 0 ? spec.workers : std::max(most_workers, 1),
          spec.prefetch > 0 ? spec.prefetch : static_cast<int>(ahead), std::max(spec.workers, 1)};
}

}  // namespace

std::vector<SampleTable> sample_tables(const Dataset& set, const Program& program) {
  std::vector<SampleTable> tables = sample_tables(set.shapes(), set.size(), program);
  for (SampleTable& table : tables) {
    const auto field = static_cast<size_t>(set.find(table.tensor));
    table.read = [&set, field, type = loaded_field(program, table.tensor)->dtype, bytes = table.sample_bytes](
                     int64_t first, int64_t count, std::byte* out) {
      const SampleField& from = set.fields()[field];
      std::vector<std::byte> sample(static_cast<size_t>(from.bytes()));
      std::vector<void*> to(set.fields().size());
      to[field] = sample.data();
      ReadState state;
      for (int64_t i = first; i < first + count; ++i, out += bytes) {
        state.rng = SampleRng(0, 0, i);
        set.read(i, state, to);
        load_field(from, sample.data(), type, out);
      }
    };
  }
  return tables;
}

std::vector<ByteTable> byte_tables(const Dataset& set, const Program& program) {
  return byte_tables(byte_fields(set.fields()), program);
}

Loader::Loader(std::unique_ptr<Dataset> set, const DatasetSpec& spec, const Program& program, uint64_t seed,
               const LoaderOptions& options)
    : set_(std::move(set)),
      drawn_(spec, *set_, seed, options.first_step + options.num_steps),
      mixing_(BatchMixing::of(spec, set_->fields())),
      options_(options),
      seed_(seed),
      layout_(*set_, spec.batch, program, options.layout != nullptr ? *options.layout : input_layout(program),
              {options.micro_batches, options.full_batch, mixing_ ? &*mixing_ : nullptr, options.no_label,
               options.labels, options.replica, options.replicas}) {
  block_bytes_ = options.layout != nullptr ? options.layout->bytes : input_layout(program).bytes;
  claimed_rows_ = std::max<int64_t>(1, kClaimedBytes / std::max<int64_t>(1, layout_.sample_bytes()));
  if (!options_.allocate) options_.allocate = allocate_on_heap;
  const LoadLimits limits = load_limits(spec, options.most_workers, block_bytes_ + layout_.staging_bytes());
  setting_ = {std::max(spec.workers, 1), std::max(spec.prefetch, 1)};
  if (spec.autotune && (limits.most_workers > 1 || limits.most_ahead > 1)) tuner_.emplace(setting_, limits);
  batches_.resize(static_cast<size_t>(options.batches_in_use + std::max(setting_.ahead, limits.most_ahead)));
  free_.reserve(batches_.size());
  threads_.reserve(static_cast<size_t>(std::max(setting_.workers, limits.most_workers)));
  apply(setting_);
}

Loader::~Loader() {
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    work_.notify_all();
    const auto none_runs = [&] { return running_ == 0; };
    while (options_.timeout_seconds > 0 && !ended_.wait_for(lock, kLook, none_runs))
      if (const std::optional<EnvError> error = hanging(); error && options_.on_hang) options_.on_hang(*error);
  }
  for (std::thread& thread : threads_) thread.join();
}

std::optional<EnvError> Loader::hanging() const {
  if (options_.timeout_seconds <= 0) return {};
  for (const std::unique_ptr<Reading>& reading : readings_) {
    const int64_t sample = reading->sample;
    const Clock::time_point since{Clock::duration(reading->since)};
    const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
    if (sample < 0 || seconds < kHangFraction * options_.timeout_seconds) continue;
    return EnvError(
        fmt::format("{}: reading has taken {:.0f} s, but launch.timeout is {:.0f} s: the file system does not "
                    "respond, or the sample needs more time",
                    set_->where(sample), seconds, options_.timeout_seconds));
  }
  return {};
}

StageSeconds Loader::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

Loader::Buffer Loader::make_buffer() const {
  const auto rows = static_cast<size_t>(drawn_.order().batch_size());
  return {options_.allocate(block_bytes_), std::vector<std::byte>(static_cast<size_t>(layout_.staging_bytes())),
          std::vector<int64_t>(rows), std::vector<uint64_t>(rows)};
}

/// Applies a setting; runs on the trainer's thread. If the number of workers falls, the workers above it wait until it
/// rises again. Blocks that were allocated are kept.
void Loader::apply(LoadSetting setting) {
  std::vector<Buffer> more;
  for (; buffers_ < options_.batches_in_use + setting.ahead; ++buffers_) more.push_back(make_buffer());
  {
    const std::lock_guard lock(mutex_);
    setting_ = setting;
    for (Buffer& buffer : more) free_.push_back(std::move(buffer));
  }
  work_.notify_all();
  while (static_cast<int>(threads_.size()) < setting.workers && start_worker()) {
  }
}

/// Returns false if the machine has no memory or no thread for another worker; the others continue without it. Throws
/// if it would be the first.
bool Loader::start_worker() {
  const auto worker = static_cast<int>(threads_.size());
  try {
    BatchLayout::Scratch scratch = layout_.make_scratch();  // Allocated here, because the new thread could not report
                                                            // an error.
    {
      const std::lock_guard lock(mutex_);
      readings_.push_back(std::make_unique<Reading>());
      ++running_;
    }
    try {
      threads_.emplace_back([this, worker, own = std::move(scratch)]() mutable { work(worker, own); });
    } catch (...) {
      const std::lock_guard lock(mutex_);
      readings_.pop_back();
      --running_;
      throw;
    }
  } catch (const std::exception&) {
    if (worker == 0) throw;
    const std::lock_guard lock(mutex_);
    setting_.workers = worker;
    return false;
  }
  return true;
}

bool Loader::may_open() const {
  return !is_opening_ && !has_failed_ && !has_ended_ && opened_ < options_.num_steps &&
         opened_ - released_ < options_.batches_in_use + setting_.ahead;
}

void Loader::work(int worker, BatchLayout::Scratch& scratch) {
  std::unique_lock lock(mutex_);
  Reading& reading = *readings_[static_cast<size_t>(worker)];
  while (true) {
    work_.wait(lock, [&] { return stop_ || (worker < setting_.workers && (may_claim() || may_open())); });
    if (stop_) break;
    if (may_claim())
      read_rows(lock, scratch, reading);
    else
      open_batch(lock, scratch, reading);
  }
  --running_;
  ended_.notify_all();
}

/// Determines the step of the next batch; negative if no batch is to be opened. The lock is not held while
/// LoaderOptions::claim is called.
int64_t Loader::claim_step(std::unique_lock<std::mutex>& lock) {
  if (!options_.claim) return options_.first_step + opened_;
  for (int64_t step = 0; !stop_;) {
    lock.unlock();
    step = options_.claim();
    lock.lock();
    if (step >= 0) return step;
    if (step == BatchBoard::kEnd) break;
    work_.wait_for(lock, kAskAgain, [this] { return stop_; });
  }
  has_ended_ = true;
  full_.notify_all();
  return -1;
}

/// Opens the next batch: finds its samples. At the start of an epoch that may take seconds, during which other workers
/// finish the last batch.
void Loader::open_batch(std::unique_lock<std::mutex>& lock, BatchLayout::Scratch& scratch, Reading& reading) {
  is_opening_ = true;
  const int64_t step = claim_step(lock);
  if (step < 0) {
    is_opening_ = false;
    return;
  }
  Batch& batch = batch_at(opened_);
  batch.step = step;
  static_cast<Buffer&>(batch) = std::move(free_.back());
  free_.pop_back();
  lock.unlock();
  batch.error = nullptr;
  batch.is_full = false;
  batch.unread = num_rows();
  try {
    const int64_t in_epoch = step % steps_per_epoch();
    drawn_.take(step, batch.samples, batch.passes);
    if (mixing_) batch.mix = mixing_->draw(SampleRng::of_batch(seed_, step / steps_per_epoch(), in_epoch));
    batch.own_rows = options_.no_label ? drawn_.order().own_rows(in_epoch) : static_cast<int64_t>(batch.samples.size());
    layout_.write_numbers(batch.samples, batch.block.get());
    expect_samples(batch.samples, reading);
  } catch (...) {
    batch.error = std::current_exception();
    batch.error_row = -1;
  }
  const bool is_empty = batch.unread == 0, goes_on = !options_.claim && !batch.error;
  lock.lock();
  next_row_ = 0;
  ++opened_;
  work_.notify_all();
  lock.unlock();
  if (is_empty) finish_batch(batch, scratch);  // This rank reads none of the batch's rows.
  if (goes_on) request_ahead(reading);
  lock.lock();
  is_opening_ = false;
  work_.notify_all();
}

/// Requests data of later batches. Called without the lock, while other workers read the rows of the batch opened last.
void Loader::request_ahead(Reading& reading) {
  try {
    drawn_.request_ahead([&](std::span<const int64_t> samples) {
      expect_samples(samples, reading);
      const std::lock_guard lock(mutex_);
      return !stop_;
    });
  } catch (...) {  // The error is reported when the step itself is drawn.
  }
}

/// Announces the samples of a whole batch at once, so that a slow disk gets all requests regardless of the number of
/// workers.
void Loader::expect_samples(std::span<const int64_t> samples, Reading& reading) const {
  for (const int64_t row : layout_.rows()) {
    const int64_t sample = samples[static_cast<size_t>(row)];
    reading.begin(sample);
    try {
      set_->expect(sample);
    } catch (const EnvError&) {  // The read of the sample will report the error, or replace the sample.
    }
  }
  reading.sample = -1;
}

/// Claims some rows of the batch opened last, and reads them. The thread that reads the last row of a batch finishes
/// the batch.
void Loader::read_rows(std::unique_lock<std::mutex>& lock, BatchLayout::Scratch& scratch, Reading& reading) {
  Batch& batch = batch_at(opened_ - 1);
  const int64_t first = next_row_, end = std::min(num_rows(), first + claimed_rows_);
  next_row_ = end;
  if (next_row_ == num_rows() && may_open()) work_.notify_all();
  lock.unlock();
  const Clock::time_point start = Clock::now();
  scratch.state.seconds = {};
  std::exception_ptr error;
  int64_t row = 0;
  try {
    for (int64_t i = first; i < end; ++i) {
      row = layout_.rows()[static_cast<size_t>(i)];
      const auto at = static_cast<size_t>(row);
      scratch.state.rng = SampleRng(seed_, batch.passes[at], batch.samples[at]);
      reading.begin(batch.samples[at]);
      layout_.read_row(row, batch.samples[at], row < batch.own_rows, scratch, batch.staging.data(), batch.block.get());
    }
  } catch (...) {
    error = std::current_exception();
  }
  reading.sample = -1;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  lock.lock();
  busy_ += seconds;
  seconds_.add(scratch.state.seconds);
  if (error && (!batch.error || row < batch.error_row)) {
    batch.error = error;
    batch.error_row = row;
  }
  has_failed_ = has_failed_ || error;
  batch.unread -= end - first;
  if (batch.unread > 0) return;
  lock.unlock();
  finish_batch(batch, scratch);
  lock.lock();
}

/// Mixes and completes a batch whose rows are all read. Called without the lock, since no other worker uses the batch.
void Loader::finish_batch(Batch& batch, BatchLayout::Scratch& scratch) {
  try {
    if (!batch.error) {
      layout_.finish(batch.mix, scratch, batch.staging.data(), batch.block.get());
      if (options_.no_label || options_.ignored_label) {
        batch.labels = count_labels(batch, scratch);
        if (!options_.no_label) {  // An evaluation divides by its own count of labels.
          const auto all = static_cast<double>(batch.own_rows * label().elements());
          batch.label_weight = batch.labels == 0 ? 0.0f : static_cast<float>(all / static_cast<double>(batch.labels));
        }
      }
    }
  } catch (...) {
    batch.error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  has_failed_ = has_failed_ || batch.error;
  batch.is_full = true;
  full_.notify_all();
}

std::optional<Loader::Ahead> Loader::look_ahead() {
  const std::lock_guard lock(mutex_);
  if (opened_ <= taken_) return std::nullopt;
  const Batch& batch = batch_at(taken_);
  if (!batch.is_full || batch.error) return std::nullopt;
  return Ahead{batch.block.get(), batch.step};
}

const std::byte* Loader::next_step() {
  const Clock::time_point start = Clock::now();
  std::unique_lock lock(mutex_);
  check(taken_ < options_.num_steps, "next_step() is called more often than num_steps");
  check(taken_ - released_ < options_.batches_in_use, "more batches are in use than there are slots");
  const int64_t wanted = taken_;
  const auto is_full = [&] { return opened_ > wanted ? batch_at(wanted).is_full : has_ended_; };
  while (!full_.wait_for(lock, kLook, is_full)) {
    const std::optional<EnvError> error = hanging();
    if (!error) continue;
    if (options_.on_hang) options_.on_hang(*error);
    throw *error;
  }
  if (opened_ == wanted) return nullptr;
  const Batch& batch = batch_at(wanted);
  if (batch.error) std::rethrow_exception(batch.error);
  ++taken_;
  const std::byte* block = batch.block.get();
  lock.unlock();
  last_taken_ = Clock::now();
  const double waited = std::chrono::duration<double>(last_taken_ - start).count();
  if (wanted == 0)
    first_taken_ = last_taken_;
  else
    waited_ += waited;
  if (tuner_) tune(waited);
  return block;
}

LoadWaits Loader::waits() const {
  const double all = std::chrono::duration<double>(last_taken_ - first_taken_).count();
  return {waited_, all > 0 ? waited_ / all : 0};
}

void Loader::tune(double waited) {
  const Clock::time_point now = Clock::now();
  const std::optional<Clock::time_point> last = std::exchange(last_step_, now);
  double busy = 0;
  StageSeconds stages;
  {
    const std::lock_guard lock(mutex_);
    busy = std::exchange(busy_, 0.0);
    stages = seconds_.since(std::exchange(seen_, seconds_));
  }
  if (!last) return;
  const auto change = tuner_->after_step(std::chrono::duration<double>(now - *last).count(), waited, busy, stages);
  if (!change) return;
  apply(change->to);
  if (options_.on_change) options_.on_change(options_.first_step + taken_, *change);
}

void Loader::release_step() {
  {
    const std::lock_guard lock(mutex_);
    check(released_ < taken_, "only a taken batch can be released");
    free_.push_back(std::move(static_cast<Buffer&>(batch_at(released_))));
    ++released_;
  }
  work_.notify_all();
}

}  // namespace trainctl
