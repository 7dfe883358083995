// Tests of mixup and cutmix, on the batches that a loader delivers to the ranks of any plan.
#include "engine/train/data/batch_mixing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/train/data/loader.h"

using namespace trainctl;

namespace {

constexpr int64_t kSamples = 12, kRows = 8, kElements = 5 * 4 * 3;

/// A set whose sample s has data [5, 4, 3] with the values 1000 * s + element, and a label [2] that is 1 for class s %
/// 2.
class Pictures final : public Dataset {
 public:
  int64_t size() const override { return kSamples; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState&, SampleOutputs to) const override {
    for (int64_t e = 0; to[0] && e < kElements; ++e)
      static_cast<float*>(to[0])[e] = static_cast<float>(1000 * sample + e);
    for (int64_t c = 0; to[1] && c < 2; ++c) static_cast<float*>(to[1])[c] = sample % 2 == c ? 1.0f : 0.0f;
  }

 private:
  std::vector<SampleField> fields_ = as_loaded(data_and_label({5, 4, 3}, {2}));
};

TransformSpec transform(const char* name, Attrs attrs = {}) {
  return {name, std::move(attrs), "dataset.transforms[0]"};
}

DatasetSpec spec_of(std::vector<TransformSpec> transforms) {
  DatasetSpec spec;
  spec.batch = kRows;
  spec.shuffle = false;
  spec.label_dtype = "f32";
  spec.transforms = std::move(transforms);
  return spec;
}

Instruction load(const char* field, int micro_batch, int64_t rows_of_micro_batch, int64_t first, int64_t rows) {
  Instruction instruction;
  instruction.opcode = Opcode::load;
  instruction.op = field;
  instruction.micro_batch = micro_batch;
  Operand operand;
  operand.global_shape =
      std::string(field) == "data" ? Shape{rows_of_micro_batch, 5, 4, 3} : Shape{rows_of_micro_batch, 2};
  operand.shape = operand.global_shape;
  operand.shape[0] = rows;
  operand.global_offset = Shape(operand.shape.size(), 0);
  operand.global_offset[0] = first;
  instruction.outputs = {operand};
  return instruction;
}

std::vector<float> floats(const std::byte* block, const Program& program, size_t load) {
  const auto* data = reinterpret_cast<const float*>(block + input_layout(program).offsets[load]);
  return {data, data + num_elements(program.instructions[load].outputs[0].shape)};
}

struct Rows {
  std::vector<float> data, labels;
  friend bool operator==(const Rows&, const Rows&) = default;
};

/// The rows of step `step` that the ranks of a plan get together: each of `micro_batches` is divided into `ranks`
/// parts.
Rows read(const DatasetSpec& spec, int64_t step, int ranks, int micro_batches, bool full_batch = false) {
  const int64_t of_micro_batch = kRows / micro_batches, part = of_micro_batch / ranks;
  std::vector<Rows> of(static_cast<size_t>(micro_batches * ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    Program program;
    for (int m = 0; m < micro_batches; ++m)
      for (const char* field : {"data", "label"})
        program.instructions.push_back(load(field, m, of_micro_batch, rank * part, part));
    Loader loader(std::make_unique<Pictures>(), spec, program, 1,
                  {.first_step = step, .num_steps = 1, .micro_batches = micro_batches, .full_batch = full_batch});
    const std::byte* block = loader.next_step();
    for (size_t m = 0; m < static_cast<size_t>(micro_batches); ++m)
      of[m * static_cast<size_t>(ranks) + static_cast<size_t>(rank)] = {floats(block, program, 2 * m),
                                                                        floats(block, program, 2 * m + 1)};
  }
  Rows all;
  for (const Rows& rows : of) {
    all.data.insert(all.data.end(), rows.data.begin(), rows.data.end());
    all.labels.insert(all.labels.end(), rows.labels.begin(), rows.labels.end());
  }
  return all;
}

/// The share of the row's own label; the label of its neighbor is the other class.
double share_of(const Rows& rows, int64_t row) { return double{rows.labels[static_cast<size_t>(2 * row + row % 2)]}; }

std::string error_of(const DatasetSpec& spec, const std::vector<SampleField>& fields) {
  try {
    (void)BatchMixing::of(spec, fields);
  } catch (const SpecError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("mixup adds to each row a share of the next one, the last row of the first, and mixes labels alike") {
  const Rows rows = read(spec_of({transform("mixup", {{"alpha", 1.0}})}), 0, 1, 1);
  const double share = share_of(rows, 0);
  CHECK(share > 0.001);
  CHECK(share < 0.999);
  for (int64_t row = 0; row < kRows; ++row) {
    CHECK(share_of(rows, row) == doctest::Approx(share));
    const int64_t next = (row + 1) % kRows;
    for (const int64_t e : {int64_t{0}, kElements - 1})
      CHECK(double{rows.data[static_cast<size_t>(row * kElements + e)]} ==
            doctest::Approx(share * static_cast<double>(1000 * row + e) +
                            (1 - share) * static_cast<double>(1000 * next + e)));
  }
}

TEST_CASE("cutmix pastes one box of the next row, and the share of the row's own label is the rest") {
  for (const bool channels_first : {false, true}) {
    std::vector<TransformSpec> transforms = {transform("cutmix")};
    if (channels_first) transforms.insert(transforms.begin(), transform("hwc2chw"));
    const Rows rows = read(spec_of(transforms), 2, 1, 1);
    for (int64_t row = 0; row < kRows; ++row) {
      int64_t own = 0;
      for (int64_t e = 0; e < kElements; ++e) {
        const float value = rows.data[static_cast<size_t>(row * kElements + e)];
        const int64_t from = static_cast<int64_t>(value) / 1000 % 100;
        own += from == static_cast<int64_t>(rows.data[static_cast<size_t>(row * kElements)]) / 1000 ? 1 : 0;
        CHECK(static_cast<int64_t>(value) % 1000 == e);
      }
      const double left = static_cast<double>(own) / kElements, share = share_of(rows, row);
      CHECK((left == doctest::Approx(share) || left == doctest::Approx(1 - share)));
    }
  }
}

TEST_CASE("a mixed batch has the same bits for any cut into ranks and micro-batches, and any number of workers") {
  for (const char* kind : {"mixup", "cutmix"}) {
    DatasetSpec spec = spec_of({transform(kind)});
    spec.shuffle = true;
    for (const int64_t step : {0, 3}) {
      const Rows whole = read(spec, step, 1, 1);
      CHECK(read(spec, step, 2, 1) == whole);
      CHECK(read(spec, step, 8, 1) == whole);
      CHECK(read(spec, step, 1, 4) == whole);
      CHECK(read(spec, step, 2, 2) == whole);
      CHECK(read(spec, step, 2, 2, true) == whole);
      for (const int workers : {2, 3, 8}) {
        spec.workers = workers;
        CHECK(read(spec, step, 1, 2) == whole);
      }
      spec.workers = 0;
    }
    CHECK(read(spec, 0, 1, 1).labels != read(spec, 3, 1, 1).labels);  // drawn anew
  }
}

TEST_CASE("of several mixes the first one that is drawn applies, and p 0 changes no batch") {
  const Rows plain = read(spec_of({}), 0, 1, 1);
  CHECK(read(spec_of({transform("mixup", {{"p", 0.0}})}), 0, 1, 1) == plain);
  const Rows cut = read(spec_of({transform("mixup", {{"p", 0.0}}), transform("cutmix")}), 0, 1, 1);
  const bool whole_numbers = std::all_of(cut.data.begin(), cut.data.end(),
                                         [](float v) { return v == static_cast<float>(static_cast<int>(v)); });
  CHECK(whole_numbers);
}

TEST_CASE("a mix that does not fit is refused before any sample is read") {
  std::vector<SampleField> fields = as_loaded(data_and_label({5, 4, 3}, {2}));
  CHECK(error_of(spec_of({transform("mixup"), transform("hwc2chw")}), fields).find("hwc2chw: comes after mixup") !=
        std::string::npos);
  CHECK(error_of(spec_of({transform("cutmix")}), as_loaded(data_and_label({5}, {2}))).find("needs an image") !=
        std::string::npos);
  CHECK(error_of(spec_of({transform("mixup")}), as_loaded(data_and_label({5}, {}, false, true)))
            .find("the labels of this data set are integers") != std::string::npos);
  fields[0].type = ElementType::u8;
  CHECK(error_of(spec_of({transform("mixup")}), fields).find("needs samples of f32, not u8") != std::string::npos);
}
