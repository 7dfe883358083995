// See the header.
#include "engine/train/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <limits>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/runtime/parts.h"

namespace trainctl {
namespace {

constexpr int64_t kElementBytes = 4;                   ///< of the set's samples, both f32 and i32
constexpr int64_t kMostTableBytes = int64_t{1} << 60;  ///< no device has as much; sums of two fit an int64_t

HostBlock allocate_on_heap(int64_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
  return {memory, memory->data()};
}

/// Converts samples from the set's type to the loads' type.
void convert(const std::byte* from, DType to_type, int64_t elements, std::byte* to) {
  if (to_type != DType::bf16) {
    std::memcpy(to, from, static_cast<size_t>(elements * kElementBytes));
    return;
  }
  const auto* values = reinterpret_cast<const float*>(from);
  std::transform(values, values + elements, reinterpret_cast<uint16_t*>(to), to_bf16);
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

std::vector<SampleTable> sample_tables(Dataset& set, const Program& program) {
  std::vector<SampleTable> tables = sample_tables(set.shapes(), set.size(), program);
  for (SampleTable& table : tables) {
    const DataTensor which = data_tensor(table.tensor);
    table.read = [&set, which, type = loaded(program, which)->dtype, elements = set.elements(which)](
                     int64_t first, int64_t count, std::byte* out) {
      std::vector<std::byte> sample(static_cast<size_t>(elements * kElementBytes));
      for (int64_t i = 0; i < count; ++i) {
        set.read(which, first + i, sample.data());
        convert(sample.data(), type, elements, out + i * elements * byte_size(type));
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
    : set_(std::move(set)), order_(spec, set_->size(), seed), options_(options) {
  const InputLayout layout = options.layout != nullptr ? *options.layout : input_layout(program);
  int64_t end = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (layout.offsets[i] < end) continue;  // not a load, or the same data as an earlier one
    parts_.push_back(make_part(program.instructions[i], layout.rows[i] > 0, spec));
    parts_.back().offset = layout.offsets[i];
    end = layout.offsets[i] + 1;
  }
  int64_t most_rows_bytes = 0;
  for (const Part& part : parts_) {
    if (!part.direct && !part.by_number)
      most_rows_bytes = std::max(most_rows_bytes, part.rows * part.sample_elements * kElementBytes);
  }
  rows_.resize(static_cast<size_t>(most_rows_bytes));
  const auto allocate = options.allocate ? options.allocate : allocate_on_heap;
  for (int i = 0; i <= options.held; ++i) blocks_.push_back(allocate(layout.bytes));
  label_weights_.resize(blocks_.size(), 1.0f);
  counts_.resize(blocks_.size());
  if (options.ignored_label) labels_.resize(static_cast<size_t>(set_->elements(DataTensor::label)));
  thread_ = std::thread([this] { load_steps(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Loader::Part Loader::make_part(const Instruction& load, bool by_number, const DatasetSpec& spec) const {
  Part part;
  part.by_number = by_number;
  part.load = &load;
  part.which = data_tensor(load.op);
  part.micro_batch = std::max(load.micro_batch, 0);
  part.sample_elements = set_->elements(part.which);
  const Operand& operand = load.outputs[0];
  const bool integer =
      part.which == DataTensor::data ? set_->shapes().data_is_integer : set_->shapes().label_is_integer;
  check((operand.dtype == DType::i32) == integer, "a load must have the data set's type, or bf16 for its f32");

  // The label may have the prediction's shape, so rows are counted in elements.
  const int64_t elements = num_elements(operand.global_shape);
  check(elements % part.sample_elements == 0, "a micro-batch must have whole samples");
  const int64_t whole_rows = elements / part.sample_elements;
  const int64_t micro_batch_rows = spec.batch / options_.micro_batches;
  check(micro_batch_rows == whole_rows, "a load must state the whole micro-batch");
  part.batch_row = part.micro_batch * micro_batch_rows;

  int64_t begin = elements, end = 0;
  for_each_run(operand.global_shape, operand.global_offset, operand.shape,
               [&](int64_t, int64_t in_whole, int64_t length) {
                 begin = std::min(begin, in_whole);
                 end = std::max(end, in_whole + length);
               });
  part.first_row = begin / part.sample_elements;
  part.rows = (end + part.sample_elements - 1) / part.sample_elements - part.first_row;
  if (options_.full_batch && !by_number) {
    part.first_row = 0;
    part.rows = whole_rows;
  }
  part.direct = operand.dtype != DType::bf16 && part.rows * part.sample_elements == num_elements(operand.shape);
  return part;
}

void Loader::load_steps() {
  try {
    for (int64_t i = 0; i < options_.num_steps; ++i) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || i - released_ < static_cast<int64_t>(blocks_.size()); });
        if (stop_) return;
      }
      fill(static_cast<size_t>(i) % blocks_.size(), options_.first_step + i);
      const std::lock_guard lock(mutex_);
      filled_ = i + 1;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

void Loader::fill(size_t block, int64_t step) {
  const int64_t in_epoch = step % steps_per_epoch();
  const std::span<const int64_t> samples = order_.batch(step / steps_per_epoch(), in_epoch);
  const int64_t own = options_.no_label ? order_.own_rows(in_epoch) : static_cast<int64_t>(samples.size());
  for (const Part& part : parts_) fill_part(part, samples, own, blocks_[block].get() + part.offset);
  if (!options_.no_label && !options_.ignored_label) return;
  const int64_t labels = count_labels(samples.first(static_cast<size_t>(own)));
  counts_[block] = {own, labels};
  if (options_.no_label) return;  // an evaluation divides by its own count
  const auto all = static_cast<double>(own * set_->elements(DataTensor::label));
  label_weights_[block] = labels == 0 ? 0.0f : static_cast<float>(all / static_cast<double>(labels));
}

/// Those that are not ignored.
int64_t Loader::count_labels(std::span<const int64_t> samples) {
  if (!options_.ignored_label) return static_cast<int64_t>(samples.size()) * set_->elements(DataTensor::label);
  int64_t counted = 0;
  for (const int64_t sample : samples) {
    set_->read(DataTensor::label, sample, labels_.data());
    counted += std::count_if(labels_.begin(), labels_.end(),
                             [ignored = *options_.ignored_label](int32_t label) { return label != ignored; });
  }
  return counted;
}

/// Marks the labels of rows that only fill the batch up. `rows` begins with the part's first row.
void Loader::fill_labels(const Part& part, int64_t own_rows, std::byte* rows) const {
  if (part.which != DataTensor::label || !options_.no_label) return;
  const int64_t first = std::clamp<int64_t>(own_rows - part.batch_row - part.first_row, 0, part.rows);
  const bool classes = set_->shapes().label_is_integer;
  for (int64_t e = first * part.sample_elements; e < part.rows * part.sample_elements; ++e) {
    if (classes)
      reinterpret_cast<int32_t*>(rows)[e] = *options_.no_label;
    else
      reinterpret_cast<float*>(rows)[e] = std::numeric_limits<float>::quiet_NaN();
  }
}

void Loader::fill_part(const Part& part, std::span<const int64_t> samples, int64_t own_rows, std::byte* out) {
  if (part.by_number) {
    const auto first = samples.begin() + part.batch_row + part.first_row;
    std::transform(first, first + part.rows, reinterpret_cast<int32_t*>(out),
                   [](int64_t sample) { return static_cast<int32_t>(sample); });
    return;
  }
  const int64_t sample_bytes = part.sample_elements * kElementBytes;
  std::byte* rows = part.direct ? out : rows_.data();
  for (int64_t r = 0; r < part.rows; ++r) {
    const auto row = static_cast<size_t>(part.batch_row + part.first_row + r);
    set_->read(part.which, samples[row], rows + r * sample_bytes);
  }
  fill_labels(part, own_rows, rows);
  if (part.direct) return;
  const int64_t skipped = part.first_row * part.sample_elements;
  const Operand& operand = part.load->outputs[0];
  for_each_run(operand.global_shape, operand.global_offset, operand.shape,
               [&](int64_t in_part, int64_t in_whole, int64_t length) {
                 convert(rows + (in_whole - skipped) * kElementBytes, operand.dtype, length,
                         out + in_part * byte_size(operand.dtype));
               });
}

const std::byte* Loader::next_step() {
  std::unique_lock lock(mutex_);
  check(taken_ < options_.num_steps, "more steps are taken than num_steps");
  check(taken_ - released_ < options_.held, "more batches are held than there is room for");
  const int64_t wanted = taken_ + 1;
  changed_.wait(lock, [&] { return filled_ >= wanted || error_; });
  if (filled_ < wanted) std::rethrow_exception(error_);
  return blocks_[static_cast<size_t>(taken_++) % blocks_.size()].get();
}

void Loader::release_step() {
  {
    const std::lock_guard lock(mutex_);
    check(released_ < taken_, "only a taken batch can be released");
    ++released_;
  }
  changed_.notify_all();
}

}  // namespace trainctl
