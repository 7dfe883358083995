// See the header.
#include "engine/train/data/loader.h"

#include <algorithm>
#include <climits>
#include <ranges>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int64_t kElementBytes = 4;                   ///< of the set's samples, both f32 and i32
constexpr int64_t kMostTableBytes = int64_t{1} << 60;  ///< no device has as much; sums of two fit an int64_t

HostBlock allocate_on_heap(int64_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
  return {memory, memory->data()};
}

/// What a worker claims at a time: enough that claiming costs nothing beside reading.
constexpr int64_t kClaimedBytes = int64_t{64} << 10;
/// Batches that autotune may read ahead.
constexpr int64_t kMostAhead = 16;

/// Fields that the job sets are not moved.
LoadLimits load_limits(const DatasetSpec& spec, int most_workers, int64_t batch_bytes) {
  const int64_t memory = spec.max_memory > 0 ? spec.max_memory : most_cached_bytes();
  const int64_t ahead = std::clamp<int64_t>(memory / std::max<int64_t>(batch_bytes, 1), 1, kMostAhead);
  return {spec.workers > 0 ? spec.workers : std::max(most_workers, 1),
          spec.prefetch > 0 ? spec.prefetch : static_cast<int>(ahead), std::max(spec.workers, 1)};
}

/// Null if the program does not load it.
const Operand* loaded(const Program& program, DataTensor which) {
  const auto load = std::find_if(program.instructions.begin(), program.instructions.end(), [&](const Instruction& i) {
    return i.opcode == Opcode::load && i.op == to_string(which);
  });
  return load == program.instructions.end() ? nullptr : &load->outputs[0];
}

}  // namespace

std::vector<SampleTable> sample_tables(const DataShapes& shapes, int64_t samples, const Program& program) {
  std::vector<SampleTable> tables;
  for (const DataTensor which : {DataTensor::data, DataTensor::label}) {
    const Operand* part = loaded(program, which);
    if (part == nullptr || samples > INT32_MAX) continue;
    const int64_t elements = num_elements(which == DataTensor::data ? shapes.data : shapes.label);
    const int64_t sample_bytes = elements * byte_size(part->dtype);
    if (capped_product(samples, sample_bytes) > kMostTableBytes) continue;
    tables.push_back({std::string(to_string(which)), samples, sample_bytes, {}});
  }
  return tables;
}

std::vector<SampleTable> sample_tables(const Dataset& set, const Program& program) {
  std::vector<SampleTable> tables = sample_tables(set.shapes(), set.size(), program);
  for (SampleTable& table : tables) {
    const DataTensor which = data_tensor(table.tensor);
    table.read = [&set, which, type = loaded(program, which)->dtype, elements = set.elements(which)](
                     int64_t first, int64_t count, std::byte* out) {
      std::vector<std::byte> sample(static_cast<size_t>(elements * kElementBytes));
      for (int64_t i = 0; i < count; ++i) {
        set.read(which, first + i, sample.data());
        convert_samples(sample.data(), type, elements, out + i * elements * byte_size(type));
      }
    };
  }
  return tables;
}

bool small_enough_to_keep(const std::vector<SampleTable>& tables) {
  int64_t bytes = 0;
  for (const SampleTable& table : tables) bytes += table.bytes();
  return bytes <= most_cached_bytes();
}

Loader::Loader(std::unique_ptr<Dataset> set, const DatasetSpec& spec, const Program& program, uint64_t seed,
               const LoaderOptions& options)
    : set_(std::move(set)),
      order_(spec, set_->size(), seed),
      options_(options),
      seed_(seed),
      layout_(*set_, spec.batch, program, options.layout != nullptr ? *options.layout : input_layout(program),
              {options.micro_batches, options.full_batch, options.no_label}) {
  block_bytes_ = options.layout != nullptr ? options.layout->bytes : input_layout(program).bytes;
  claimed_rows_ = std::max<int64_t>(1, kClaimedBytes / std::max<int64_t>(1, layout_.sample_bytes()));
  if (!options_.allocate) options_.allocate = allocate_on_heap;
  const LoadLimits limits = load_limits(spec, options.most_workers, block_bytes_ + layout_.staging_bytes());
  setting_ = {std::max(spec.workers, 1), std::max(spec.prefetch, 1)};
  if (spec.autotune && (limits.most_workers > 1 || limits.most_ahead > 1)) tuner_.emplace(setting_, limits);
  batches_.resize(static_cast<size_t>(options.held + std::max(setting_.ahead, limits.most_ahead)));
  free_.reserve(batches_.size());
  threads_.reserve(static_cast<size_t>(std::max(setting_.workers, limits.most_workers)));
  apply(setting_);
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Loader::Buffer Loader::make_buffer() const {
  const auto rows = static_cast<size_t>(order_.batch_size());
  return {options_.allocate(block_bytes_), std::vector<std::byte>(static_cast<size_t>(layout_.staging_bytes())),
          std::vector<int64_t>(rows), std::vector<uint64_t>(rows)};
}

/// On the trainer's thread. Workers above the number wait for it to rise again, and blocks are kept.
void Loader::apply(LoadSetting setting) {
  std::vector<Buffer> more;
  for (; buffers_ < options_.held + setting.ahead; ++buffers_) more.push_back(make_buffer());
  {
    const std::lock_guard lock(mutex_);
    setting_ = setting;
    for (Buffer& buffer : more) free_.push_back(std::move(buffer));
  }
  work_.notify_all();
  for (auto worker = static_cast<int>(threads_.size()); worker < setting.workers; ++worker)
    threads_.emplace_back([this, worker] { work(worker); });
}

bool Loader::may_open() const {
  return !is_opening_ && !has_failed_ && opened_ < options_.num_steps &&
         opened_ - released_ < options_.held + setting_.ahead;
}

void Loader::work(int worker) {
  BatchLayout::Scratch scratch = layout_.make_scratch();
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stop_ || (worker < setting_.workers && (may_claim() || may_open())); });
    if (stop_) return;
    if (may_claim())
      read_rows(lock, scratch);
    else
      open_batch(lock, scratch.state);
  }
}

/// Finds the samples of the next batch: at the start of an epoch that may take seconds, in which others finish the last.
void Loader::open_batch(std::unique_lock<std::mutex>& lock, ReadState& state) {
  is_opening_ = true;
  Batch& batch = batch_at(opened_);
  const int64_t step = options_.first_step + opened_;
  static_cast<Buffer&>(batch) = std::move(free_.back());
  free_.pop_back();
  lock.unlock();
  batch.error = nullptr;
  batch.is_full = false;
  batch.unread = num_rows();
  try {
    const int64_t in_epoch = step % steps_per_epoch();
    std::ranges::copy(order_.batch(step / steps_per_epoch(), in_epoch), batch.samples.begin());
    std::ranges::copy(order_.passes(), batch.passes.begin());
    batch.own_rows = options_.no_label ? order_.own_rows(in_epoch) : static_cast<int64_t>(batch.samples.size());
    layout_.write_numbers(batch.samples, batch.block.get());
  } catch (...) {
    batch.error = std::current_exception();
    batch.error_row = -1;
  }
  lock.lock();
  is_opening_ = false;
  next_row_ = 0;
  ++opened_;
  if (batch.unread == 0) {  // this rank reads none of its rows
    lock.unlock();
    finish_batch(batch, state);
    lock.lock();
  }
  work_.notify_all();
}

/// Claims some rows of the batch opened last, and reads them. Who reads a batch's last row finishes it.
void Loader::read_rows(std::unique_lock<std::mutex>& lock, BatchLayout::Scratch& scratch) {
  Batch& batch = batch_at(opened_ - 1);
  const int64_t first = next_row_, end = std::min(num_rows(), first + claimed_rows_);
  next_row_ = end;
  if (next_row_ == num_rows() && may_open()) work_.notify_all();
  lock.unlock();
  const Clock::time_point start = Clock::now();
  std::exception_ptr error;
  int64_t row = 0;
  try {
    for (int64_t i = first; i < end; ++i) {
      row = layout_.rows()[static_cast<size_t>(i)];
      const auto at = static_cast<size_t>(row);
      scratch.state.rng = SampleRng(seed_, batch.passes[at], batch.samples[at]);
      layout_.read_row(row, batch.samples[at], row < batch.own_rows, scratch, batch.staging.data(), batch.block.get());
    }
  } catch (...) {
    error = std::current_exception();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  lock.lock();
  busy_ += seconds;
  if (error && (!batch.error || row < batch.error_row)) {
    batch.error = error;
    batch.error_row = row;
  }
  has_failed_ = has_failed_ || error;
  batch.unread -= end - first;
  if (batch.unread > 0) return;
  lock.unlock();
  finish_batch(batch, scratch.state);
  lock.lock();
}

/// Without the lock: the batch is this worker's alone.
void Loader::finish_batch(Batch& batch, ReadState& state) {
  try {
    if (!batch.error) {
      layout_.finish(batch.staging.data(), batch.block.get());
      if (options_.no_label || options_.ignored_label) {
        batch.labels = count_labels(batch, state);
        const auto all = static_cast<double>(batch.own_rows * set_->elements(DataTensor::label));
        if (!options_.no_label)  // an evaluation divides by its own count
          batch.label_weight = batch.labels == 0 ? 0.0f : static_cast<float>(all / static_cast<double>(batch.labels));
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

/// Those that are not ignored.
int64_t Loader::count_labels(const Batch& batch, ReadState& state) const {
  if (!options_.ignored_label) return batch.own_rows * set_->elements(DataTensor::label);
  int64_t counted = 0;
  for (int64_t row = 0; row < batch.own_rows; ++row) {
    const auto at = static_cast<size_t>(row);
    state.rng = SampleRng(seed_, batch.passes[at], batch.samples[at]);
    set_->read(batch.samples[at], state, {nullptr, state.labels.data()});
    counted += std::count_if(state.labels.begin(), state.labels.end(),
                             [ignored = *options_.ignored_label](int32_t label) { return label != ignored; });
  }
  return counted;
}

const std::byte* Loader::next_step() {
  const Clock::time_point start = Clock::now();
  std::unique_lock lock(mutex_);
  check(taken_ < options_.num_steps, "more steps are taken than num_steps");
  check(taken_ - released_ < options_.held, "more batches are held than there is room for");
  const int64_t wanted = taken_;
  full_.wait(lock, [&] { return opened_ > wanted && batch_at(wanted).is_full; });
  const Batch& batch = batch_at(wanted);
  if (batch.error) std::rethrow_exception(batch.error);
  ++taken_;
  const std::byte* block = batch.block.get();
  lock.unlock();
  if (tuner_) tune(std::chrono::duration<double>(Clock::now() - start).count());
  return block;
}

void Loader::tune(double waited) {
  const Clock::time_point now = Clock::now();
  const std::optional<Clock::time_point> last = std::exchange(last_step_, now);
  double busy = 0;
  {
    const std::lock_guard lock(mutex_);
    busy = std::exchange(busy_, 0.0);
  }
  if (!last) return;
  const auto change = tuner_->after_step(std::chrono::duration<double>(now - *last).count(), waited, busy);
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
