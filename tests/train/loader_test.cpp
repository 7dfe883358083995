// Tests of the data that the loader delivers to a rank for the load instructions of its program.
#include "engine/train/data/loader.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"

using namespace trainctl;

namespace {

/// A set of `size` samples. Sample s has data [4, 3] with the values 100 * s + element, and the label s. Reading sample
/// `broken` fails.
class Counting final : public Dataset {
 public:
  explicit Counting(int64_t size, int64_t broken = -1) : size_(size), broken_(broken) {
    fields_ = as_loaded(data_and_label({4, 3}, {}));
  }
  int64_t size() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState&, SampleOutputs to) const override {
    if (sample == broken_) throw EnvError("sample is broken");
    for (int64_t e = 0; to[0] && e < 12; ++e) static_cast<float*>(to[0])[e] = float(100 * sample + e);
    if (to[1]) *static_cast<float*>(to[1]) = float(100 * sample);
    ++reads;
  }
  mutable std::atomic<int64_t> reads = 0;

 private:
  int64_t size_, broken_;
  std::vector<SampleField> fields_;
};

/// A set whose sample s has two labels: s % 3 and 7.
class Classes final : public Dataset {
 public:
  int64_t size() const override { return 6; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState&, SampleOutputs to) const override {
    if (!to[1]) return;
    static_cast<int32_t*>(to[1])[0] = static_cast<int32_t>(sample % 3);
    static_cast<int32_t*>(to[1])[1] = 7;
  }

 private:
  std::vector<SampleField> fields_ = as_loaded(data_and_label({1}, {2}, true, true));
};

Instruction load_of_shape(const std::string& tensor, int micro_batch, Shape whole, Shape offset, Shape part) {
  Instruction instruction;
  instruction.opcode = Opcode::load;
  instruction.op = tensor;
  instruction.micro_batch = micro_batch;
  Operand operand;
  operand.global_shape = whole;
  operand.global_offset = offset;
  operand.shape = part;
  instruction.outputs = {operand};
  return instruction;
}

DatasetSpec spec_of(int64_t batch) {
  DatasetSpec spec;
  spec.batch = batch;
  spec.shuffle = false;
  return spec;
}

/// The contents of a block for instruction `load` of the program.
std::vector<float> loader_floats(const std::byte* block, const Program& program, size_t load) {
  const auto* data = reinterpret_cast<const float*>(block + input_layout(program).offsets[load]);
  return {data, data + num_elements(program.instructions[load].outputs[0].shape)};
}

}  // namespace

TEST_CASE("a rank gets its rows of its micro-batch, step after step") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {4, 1}, {2, 0}, {2, 1}),
                          load_of_shape("label", 1, {4, 1}, {2, 0}, {2, 1})};
  Loader loader(std::make_unique<Counting>(20), spec_of(8), program, 1, {.num_steps = 4, .micro_batches = 2});
  CHECK(loader.steps_per_epoch() == 2);
  for (int step = 0; step < 4; ++step) {
    const std::byte* block = loader.next_step();
    const float first = float(800 * (step % 2));
    CHECK(loader_floats(block, program, 0) == std::vector<float>{first + 200, first + 300});
    CHECK(loader_floats(block, program, 1) == std::vector<float>{first + 600, first + 700});
    loader.release_step();
  }
}

TEST_CASE(
    "a shuffle in blocks gives each step the same samples for any number of workers, ranks' parts, and from any step") {
  Program whole, part;
  whole.instructions = {load_of_shape("label", 0, {8, 1}, {0, 0}, {8, 1})};
  part.instructions = {load_of_shape("label", 0, {8, 1}, {4, 0}, {4, 1})};  // The program of the second of two ranks,
                                                                            // which loads the second half of the rows.
  DatasetSpec spec = spec_of(8);
  spec.shuffle = true;
  spec.shuffle_block = 3;
  const auto steps = [&](int workers, const Program& program, int64_t first) {
    spec.workers = workers;
    Loader loader(std::make_unique<Counting>(100), spec, program, 1, {.first_step = first, .num_steps = 30 - first});
    std::vector<std::vector<float>> of;
    for (int64_t step = first; step < 30; ++step) {  // 30 steps are two and a half epochs.
      of.push_back(loader_floats(loader.next_step(), program, 0));
      loader.release_step();
    }
    return of;
  };
  const auto expected = steps(1, whole, 0);
  CHECK(steps(3, whole, 0) == expected);
  CHECK(steps(8, whole, 0) == expected);
  for (const int64_t first : {1, 7, 12, 17, 25}) {
    const auto resumed = steps(2, whole, first);
    CHECK(std::equal(resumed.begin(), resumed.end(), expected.begin() + first));
  }
  const auto halves = steps(2, part, 0);
  for (size_t step = 0; step < halves.size(); ++step)
    CHECK(halves[step] == std::vector<float>(expected[step].begin() + 4, expected[step].end()));
}

TEST_CASE("slices of other dims are loaded, and a full batch has the same numbers as only the rows") {
  Program program;
  program.instructions = {load_of_shape("data", 0, {4, 4, 3}, {1, 2, 1}, {2, 1, 2})};
  for (bool full : {false, true}) {
    auto set = std::make_unique<Counting>(4);
    Counting* counting = set.get();
    Loader loader(std::move(set), spec_of(4), program, 1, {.num_steps = 1, .full_batch = full});
    const std::byte* block = loader.next_step();
    CHECK(loader_floats(block, program, 0) == std::vector<float>{107, 108, 207, 208});
    CHECK(counting->reads == (full ? 4 : 2));
  }
}

TEST_CASE("a load as bf16 rounds the f32 of the set, both for slices and for whole rows") {
  Program program;
  program.instructions = {load_of_shape("data", 0, {4, 4, 3}, {1, 2, 1}, {2, 1, 2}),
                          load_of_shape("data", 0, {4, 4, 3}, {3, 0, 0}, {1, 4, 3})};
  for (Instruction& i : program.instructions) i.outputs[0].dtype = DType::bf16;
  Loader loader(std::make_unique<Counting>(4), spec_of(4), program, 1, {.num_steps = 1});
  const std::byte* block = loader.next_step();
  const auto* cut = reinterpret_cast<const uint16_t*>(block + input_layout(program).offsets[0]);
  const auto* rows = reinterpret_cast<const uint16_t*>(block + input_layout(program).offsets[1]);
  for (int e = 0; e < 4; ++e)
    CHECK(from_bf16(cut[e]) == std::vector<float>{107, 108, 207, 208}[static_cast<size_t>(e)]);
  CHECK(from_bf16(rows[0]) == 300);  // values from 300 to 311 are 2 apart in bf16
  CHECK(from_bf16(rows[1]) == 300);
  CHECK(from_bf16(rows[3]) == 304);
}

TEST_CASE("if the device keeps all samples, their numbers are loaded instead of data, whatever full_batch is") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {4}, {2}, {2}),
                          load_of_shape("data", 0, {4, 4, 3}, {1, 0, 0}, {2, 4, 3})};
  auto set = std::make_unique<Counting>(12);
  const std::vector<SampleTable> tables = sample_tables(*set, program);
  REQUIRE(tables.size() == 2);
  CHECK(tables[0].tensor == "data");
  CHECK(tables[0].bytes() == 12 * 12 * 4);
  std::vector<float> samples(24);
  tables[0].read(3, 2, reinterpret_cast<std::byte*>(samples.data()));
  CHECK(samples[0] == 300);
  CHECK(samples[23] == 411);
  const InputLayout layout = input_layout(program, {tables[0]});
  CHECK(layout.rows == std::vector<int64_t>{0, 2});
  for (bool full : {false, true}) {
    Loader loader(std::make_unique<Counting>(12), spec_of(4), program, 1,
                  {.num_steps = 2, .full_batch = full, .layout = &layout});
    loader.next_step();
    loader.release_step();
    const std::byte* block = loader.next_step();
    const auto* numbers = reinterpret_cast<const int32_t*>(block + layout.offsets[1]);
    CHECK(numbers[0] == 5);
    CHECK(numbers[1] == 6);
  }
}

TEST_CASE("the labels that count are those of the whole batch, whichever rows a rank reads") {
  Program reader, other;  // the last stage has the labels
  reader.instructions = {load_of_shape("label", 1, {2, 2}, {1, 0}, {1, 2})};
  reader.instructions[0].outputs[0].dtype = DType::i32;
  for (const Program* program : {&reader, &other}) {
    const auto weight = [&](std::optional<int64_t> ignored) {
      Loader loader(std::make_unique<Classes>(), spec_of(4), *program, 1,
                    {.num_steps = 1, .micro_batches = 2, .ignored_label = ignored});
      loader.next_step();
      return loader.label_weight();
    };
    CHECK(weight({}) == 1.0f);
    CHECK(weight(-100) == 1.0f);
    CHECK(weight(0) == 8.0f / 6.0f);  // samples 0 and 3
    CHECK(weight(7) == 2.0f);
  }
  const auto all_ignored = [] {
    struct Sevens final : public Dataset {
      std::vector<SampleField> all = as_loaded(data_and_label({1}, {}, true, true));
      int64_t size() const override { return 2; }
      const std::vector<SampleField>& fields() const override { return all; }
      void read(int64_t, ReadState&, SampleOutputs to) const override {
        if (to[1]) *static_cast<int32_t*>(to[1]) = 7;
      }
    };
    return std::make_unique<Sevens>();
  };
  Loader loader(all_ignored(), spec_of(2), other, 1, {.num_steps = 1, .ignored_label = 7});
  loader.next_step();
  CHECK(loader.label_weight() == 0.0f);
}

TEST_CASE("only whole samples that follow each other can be replaced by their numbers") {
  const SampleTable table{"data", 4, 12 * 4, {}};
  const auto whole = [&](const Instruction& i) {
    Program program;
    program.instructions = {i};
    return loads_whole_samples(program, table);
  };
  CHECK(whole(load_of_shape("data", 0, {4, 4, 3}, {1, 0, 0}, {2, 4, 3})));
  CHECK(whole(load_of_shape("label", 0, {4, 1}, {1, 0}, {2, 1})));
  CHECK_FALSE(whole(load_of_shape("data", 0, {4, 4, 3}, {0, 2, 0}, {4, 2, 3})));
  CHECK_FALSE(whole(load_of_shape("data", 0, {4, 12}, {0, 6}, {1, 6})));
}

TEST_CASE("one tensor may be loaded in several layouts") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {4}, {0}, {4}), load_of_shape("label", 0, {4}, {2}, {2})};
  Loader loader(std::make_unique<Counting>(4), spec_of(4), program, 1, {.num_steps = 1});
  const std::byte* block = loader.next_step();
  CHECK(loader_floats(block, program, 0) == std::vector<float>{0, 100, 200, 300});
  CHECK(loader_floats(block, program, 1) == std::vector<float>{200, 300});
}

TEST_CASE("an error of the loading thread is thrown when the trainer asks for that step") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {4}, {0}, {4})};
  Loader loader(std::make_unique<Counting>(12, 9), spec_of(4), program, 1, {.num_steps = 3});
  loader.next_step();
  loader.release_step();
  const std::byte* block = loader.next_step();
  CHECK(loader_floats(block, program, 0) == std::vector<float>{400, 500, 600, 700});
  loader.release_step();
  CHECK_THROWS_WITH_AS(loader.next_step(), "sample is broken", EnvError);
}

TEST_CASE("an unused loader ends with its owner") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {4}, {0}, {4})};
  for (int takes : {0, 1, 2}) {
    auto loader = std::make_unique<Loader>(std::make_unique<Counting>(400), spec_of(4), program, 1,
                                           LoaderOptions{.num_steps = 100, .batches_in_use = 2});
    for (int i = 0; i < takes; ++i) loader->next_step();
    CHECK_NOTHROW(loader.reset());
  }
}

TEST_CASE("batches stay as they are until they are released, in the requested memory") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {4}, {0}, {4})};
  std::vector<int64_t> allocated;
  const auto allocate = [&](int64_t bytes) {
    allocated.push_back(bytes);
    auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
    return HostBlock(memory, memory->data());
  };
  Loader loader(std::make_unique<Counting>(400), spec_of(4), program, 1,
                {.num_steps = 20, .batches_in_use = 3, .allocate = allocate});
  CHECK(allocated == std::vector<int64_t>(4, 64));
  const std::byte *first = loader.next_step(), *second = loader.next_step(), *third = loader.next_step();
  CHECK_THROWS_AS(loader.next_step(), InternalError);
  CHECK(loader_floats(first, program, 0)[0] == 0);
  CHECK(loader_floats(second, program, 0)[0] == 400);
  loader.release_step();
  CHECK(loader_floats(loader.next_step(), program, 0)[0] == 1200);
  CHECK(loader_floats(third, program, 0)[0] == 800);
}

namespace {

/// A set whose data depend on the sample's random numbers, and in which some samples take longer to read.
class Drawn final : public Dataset {
 public:
  int64_t size() const override { return 40; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    if (sample % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (sample == broken) throw EnvError("sample " + std::to_string(sample) + " is broken");
    for (int e = 0; to[0] && e < kElements; ++e) static_cast<float*>(to[0])[e] = float(state.rng.uniform());
    if (to[1]) *static_cast<float*>(to[1]) = float(sample);
  }
  int64_t broken = -1;

 private:
  static constexpr int kElements = 6000;  // a worker claims few of them at a time
  std::vector<SampleField> fields_ = as_loaded(data_and_label({kElements}, {}));
};

Program drawn_program() {
  Program program;
  program.instructions = {load_of_shape("data", 0, {10, 6000}, {0, 0}, {10, 6000}),
                          load_of_shape("data", 0, {10, 6000}, {2, 6}, {5, 11}),
                          load_of_shape("label", 0, {10}, {0}, {10})};
  return program;
}

std::vector<std::vector<float>> batches(int workers, int prefetch, int64_t first_step, int64_t steps) {
  const Program program = drawn_program();
  DatasetSpec spec = spec_of(10);
  spec.shuffle = true;
  spec.workers = workers;
  spec.prefetch = prefetch;
  Loader loader(std::make_unique<Drawn>(), spec, program, 5,
                {.first_step = first_step, .num_steps = steps, .batches_in_use = 2});
  std::vector<std::vector<float>> all;
  for (int64_t step = 0; step < steps; ++step) {
    const std::byte* block = loader.next_step();
    all.emplace_back();
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<float> part = loader_floats(block, program, i);
      all.back().insert(all.back().end(), part.begin(), part.end());
    }
    loader.release_step();
  }
  return all;
}

}  // namespace

TEST_CASE("every batch has the same bits for any number of workers and batches ahead, and after a resume") {
  const auto expected = batches(1, 1, 0, 10);
  CHECK(expected[0] != expected[4]);  // another epoch draws other numbers
  for (const int workers : {1, 2, 3, 8})
    for (const int prefetch : {1, 5}) CHECK(batches(workers, prefetch, 0, 10) == expected);
  const auto resumed = batches(3, 2, 6, 4);
  CHECK(std::equal(resumed.begin(), resumed.end(), expected.begin() + 6));
}

TEST_CASE("whichever worker meets a broken sample, the batches before it are handed over and it is named") {
  const Program program = drawn_program();
  for (const int workers : {1, 2, 8}) {
    DatasetSpec spec = spec_of(10);
    spec.workers = workers;
    spec.prefetch = 4;
    auto set = std::make_unique<Drawn>();
    set->broken = 25;
    Loader loader(std::move(set), spec, program, 5, {.num_steps = 4});
    for (int step = 0; step < 2; ++step) {
      CHECK_NOTHROW(loader.next_step());
      loader.release_step();
    }
    CHECK_THROWS_WITH_AS(loader.next_step(), "sample 25 is broken", EnvError);
  }
}

TEST_CASE("autotune adds workers while the trainer waits for the loader, which changes no batch") {
  const Program program = drawn_program();
  DatasetSpec spec = spec_of(10);
  spec.shuffle = true;
  std::vector<LoadTuner::Change> changes;
  const int64_t steps = 40;
  Loader loader(std::make_unique<Drawn>(), spec, program, 5,
                {.num_steps = steps, .most_workers = 4, .on_change = [&](int64_t, const LoadTuner::Change& change) {
                   changes.push_back(change);
                 }});
  const auto expected = batches(1, 1, 0, steps);
  for (int64_t step = 0; step < steps; ++step) {
    const std::byte* block = loader.next_step();
    const auto& whole = expected[static_cast<size_t>(step)];
    CHECK(loader_floats(block, program, 0) == std::vector<float>(whole.begin(), whole.begin() + 60000));
    loader.release_step();
  }
  // On a busy machine the worker may get too little CPU time to seem busy; it then reads farther ahead first.
  CHECK(std::any_of(changes.begin(), changes.end(), [](const auto& change) { return change.to.workers > 1; }));
  spec.autotune = false;
  Loader alone(std::make_unique<Drawn>(), spec, program, 5, {.num_steps = steps, .most_workers = 4});
  for (int64_t step = 0; step < steps; ++step) {
    alone.next_step();
    alone.release_step();
  }
  CHECK(alone.setting() == LoadSetting{1, 1});
}

namespace {

/// A set in which sample 5 cannot be read before `release`. It remembers which samples were announced by expect().
class Requested final : public Dataset {
 public:
  explicit Requested(std::set<int64_t>& requested) : requested_(requested) {}
  int64_t size() const override { return set_.size(); }
  const std::vector<SampleField>& fields() const override { return set_.fields(); }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override { set_.read(sample, state, to); }
  void expect(int64_t sample) const override { requested_.insert(sample); }  // one worker at a time opens batches

 private:
  Counting set_{1000};
  std::set<int64_t>& requested_;
};

class Hanging final : public Dataset {
 public:
  explicit Hanging(std::atomic<bool>& release) : release_(release) {}
  int64_t size() const override { return 20; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState&, SampleOutputs to) const override {
    while (sample == 5 && !release_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (to[1] != nullptr) *static_cast<float*>(to[1]) = float(sample);
  }
  std::string where(int64_t sample) const override { return "mount/" + std::to_string(sample) + ".jpg"; }

 private:
  std::atomic<bool>& release_;
  std::vector<SampleField> fields_ = as_loaded(data_and_label({1}, {}));
};

}  // namespace

TEST_CASE("a sample that a file system does not deliver in time is named, and a rank that waits for it can end") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {4}, {0}, {4})};
  std::atomic<bool> release = false;
  std::string reported;
  Loader loader(
      std::make_unique<Hanging>(release), spec_of(4), program, 1,
      {.num_steps = 5, .timeout_seconds = 0.2, .on_hang = [&](const EnvError& error) { reported = error.what(); }});
  loader.next_step();
  loader.release_step();
  try {
    loader.next_step();
    FAIL("the second batch cannot be whole");
  } catch (const EnvError& error) {
    CHECK(std::string(error.what()).starts_with("mount/5.jpg: reading has taken "));
  }
  CHECK(reported.starts_with("mount/5.jpg: "));
  release = true;
}

TEST_CASE("a slow sample that arrives in time is not an error") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {10}, {0}, {10})};
  Loader loader(std::make_unique<Drawn>(), spec_of(10), program, 1, {.num_steps = 3, .timeout_seconds = 60});
  for (int step = 0; step < 3; ++step) {
    CHECK_NOTHROW(loader.next_step());
    loader.release_step();
  }
  CHECK(loader.skipped().count == 0);
}

TEST_CASE("samples in a store are requested many batches ahead, which changes no batch") {
  Program program;
  program.instructions = {load_of_shape("label", 0, {8, 1}, {0, 0}, {8, 1})};
  DatasetSpec spec = spec_of(8);
  spec.shuffle = true;
  std::vector<std::vector<float>> batches[2];
  std::set<int64_t> requested[2];
  for (const int is_remote : {0, 1}) {
    spec.paths = {is_remote ? "s3://bucket/shard.tar" : "shard.tar"};
    Loader loader(std::make_unique<Requested>(requested[is_remote]), spec, program, 1, {.num_steps = 300});
    loader.next_step();  // the only worker has requested what follows before it has read the batch
    const size_t at_once = requested[is_remote].size();
    loader.release_step();
    if (is_remote)
      CHECK(at_once >= 8 * DrawnBatches::kMostBatches);  // another opened batch may be among them
    else
      CHECK(at_once <= size_t{3 * 8});            // batches that are open
    for (int64_t step = 1; step < 300; ++step) {  // two epochs and a half
      batches[is_remote].push_back(loader_floats(loader.next_step(), program, 0));
      loader.release_step();
    }
  }
  CHECK(batches[0] == batches[1]);
  CHECK(requested[1].size() == 1000);
}

TEST_CASE("a loader that resumes at sample 10^9 of 10^10 reads only that batch, the same as in a run from the start") {
  DatasetSpec spec = spec_of(10);
  spec.shuffle = true;
  spec.workers = spec.prefetch = 1;
  Program program;
  program.instructions = {load_of_shape("label", 0, {10}, {0}, {10})};
  const auto from = [&](int64_t step) {
    auto set = std::make_unique<Counting>(10'000'000'000);
    Counting* counting = set.get();
    Loader loader(std::move(set), spec, program, 1, {.first_step = step, .num_steps = 2});
    std::vector<float> labels = loader_floats(loader.next_step(), program, 0);
    loader.release_step();
    const std::vector<float> second = loader_floats(loader.next_step(), program, 0);
    CHECK(counting->reads == 20);
    labels.insert(labels.end(), second.begin(), second.end());
    return labels;
  };
  const std::vector<float> at = from(100'000'000), after = from(100'000'001);
  CHECK(std::vector<float>(at.begin() + 10, at.end()) == std::vector<float>(after.begin(), after.begin() + 10));
}
