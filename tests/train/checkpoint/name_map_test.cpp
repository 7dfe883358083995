// Tests of name maps: patterns, orders of axes, and the errors for a map that does not fit.
#include "engine/train/checkpoint/name_map.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <numeric>

#include "engine/base/error.h"
#include "engine/train/checkpoint/box_runs.h"
#include "engine/train/checkpoint/name_pattern.h"
#include "engine/train/checkpoint/tiling.h"

using namespace trainctl;

namespace {

using Words = std::vector<NameMapFile::Words>;

const Words kWords = {{{"w", {}}, {{"weight", "weight"}, {"bias", "bias"}}}, {{"part", {}}, {{"a", "1"}, {"ab", "2"}}}};

NamePattern pattern(const std::string& text, Side side = Side::ours) { return {{text, {}}, side, kWords, "tensors"}; }

/// The name on the other side; "" if the pattern does not match.
std::string translated(const std::string& from, const std::string& to, const std::string& name) {
  const auto holes = pattern(from).match(name);
  return holes ? pattern(to, Side::theirs).fill(*holes) : "";
}

LayerNumbers attention(int64_t heads, std::optional<int64_t> kv_heads) {
  return {[](std::string_view layer) { return layer == "h.0.attn"; },
          [=](std::string_view, std::string_view field) -> std::optional<int64_t> {
            if (field == "heads") return heads;
            return kv_heads;
          }};
}

std::vector<float> counted(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

const std::byte* bytes(const std::vector<float>& values) { return reinterpret_cast<const std::byte*>(values.data()); }
std::byte* bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

/// The elements of a box of our tensor, read from their tensors.
std::vector<float> placed(const AxisOrder& order, const AxisOrder::Sizes& sizes, const Box& ours,
                          const std::vector<std::vector<float>>& theirs) {
  std::vector<float> values(static_cast<size_t>(num_elements(ours.shape)), -1);
  for (const AxisOrder::Block& block : order.blocks_of(sizes, ours)) {
    std::vector<float> elements(static_cast<size_t>(num_elements(block.box.shape)));
    for_each_run(block.box, whole_box(block.shape), block.box, [&](int64_t from, int64_t to, int64_t count) {
      std::copy_n(theirs[block.part].begin() + from, count, elements.begin() + to);
    });
    if (block.is_contiguous())
      std::copy(elements.begin(), elements.end(), values.begin() + block.first);
    else
      block.place(elements.data(), values.data());
  }
  return values;
}

/// Checks that every box of our tensor gets its elements, if the elements of our tensor are 0, 1, 2, …
void check_boxes(const AxisOrder& order, const AxisOrder::Sizes& sizes, const Shape& shape,
                 const std::vector<std::vector<float>>& theirs) {
  const Shape two = shape.size() == 2 ? shape : Shape{shape[0], 1};
  for (int64_t row = 0; row < two[0]; ++row)
    for (int64_t rows = 1; row + rows <= two[0]; ++rows)
      for (int64_t column = 0; column < two[1]; ++column)
        for (int64_t columns = 1; column + columns <= two[1]; ++columns) {
          Box box{{row, column}, {rows, columns}};
          if (shape.size() == 1) box.offset.pop_back(), box.shape.pop_back();
          std::vector<float> expected;
          for (int64_t i = row; i < row + rows; ++i)
            for (int64_t j = column; j < column + columns; ++j) expected.push_back(static_cast<float>(i * two[1] + j));
          CHECK(placed(order, sizes, box, theirs) == expected);
        }
}

std::string fault_of(const std::string& order, size_t parts = 1) {
  try {
    AxisOrder::parse(order, parts);
  } catch (const OrderFault& fault) {
    return fault.message;
  }
  return "";
}

/// "line:column message" of each error.
std::vector<std::string> errors_of(const std::string& map) {
  try {
    NameMap::parse(map, "map.yaml");
  } catch (const SpecError& error) {
    std::vector<std::string> all;
    for (const Diagnostic& d : error.diagnostics())
      all.push_back(fmt::format("{}:{} {}: {}", d.pos.line, d.pos.column, d.path, d.message));
    return all;
  }
  return {};
}

}  // namespace

TEST_CASE("what stands in a pattern's holes goes into the other's") {
  CHECK(translated("h.{i}.ln.{w}", "x.{i}.{w}", "h.12.ln.bias") == "x.12.bias");
  CHECK(translated("s{s}.{i}.{part}.k", "layer{s}.{i+1}.conv{part}.k", "s2.0.ab.k") == "layer2.1.conv2.k");
  CHECK(translated("h.{i}.{i}", "{i}", "h.3.3") == "3");
  CHECK(translated("h.{i}.{i}", "{i}", "h.3.4").empty());
  for (const char* name : {"h.01.ln.bias", "h.x.ln.bias", "h.1.ln.scale", "h.1.ln.bias2", "ah.1.ln.bias", "h..ln.bias"})
    CHECK_MESSAGE(translated("h.{i}.ln.{w}", "x.{i}.{w}", name).empty(), name);
}

TEST_CASE("a hole with a number added matches only what is as large") {
  CHECK_FALSE(pattern("layer.{i+1}").match("layer.0"));
  CHECK(pattern("layer.{i+1}").match("layer.1")->at("i") == 0);
}

TEST_CASE("an order goes to theirs and back, element by element") {
  // [out, in] from [in, out].
  const AxisOrder transpose = AxisOrder::parse("o i = i o", 1);
  const AxisOrder::Sizes sizes = transpose.sizes_from_ours({2, 3}, {});
  CHECK(transpose.theirs_shape(sizes, 0) == Shape{3, 2});
  const std::vector<float> ours = counted(6);
  std::vector<float> theirs(6);
  transpose.to_theirs(sizes, 0, bytes(ours), bytes(theirs), sizeof(float));
  CHECK(theirs == std::vector<float>{0, 3, 1, 4, 2, 5});
  check_boxes(transpose, sizes, {2, 3}, {theirs});
}

TEST_CASE("rows of each head become all queries, all keys, all values") {
  const AxisOrder order = AxisOrder::parse("(h p k) = (p h k)", 1);
  const AxisOrder::Sizes sizes = order.sizes_from_ours({12}, {{"h", 2}, {"p", 3}});
  const std::vector<float> theirs = counted(12);  // q of head 0: 0 1, of head 1: 2 3; k: 4 5, 6 7; v: 8 9, 10 11
  CHECK(placed(order, sizes, whole_box({12}), {theirs}) == std::vector<float>{0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11});
  CHECK(placed(order, sizes, {{3}, {6}}, {theirs}) == std::vector<float>{5, 8, 9, 2, 3, 6});
}

TEST_CASE("grouped queries: three of theirs are joined for each head of keys") {
  const AxisOrder order = AxisOrder::parse("(g [r+1+1] k) d = (g r k) d, (g k) d, (g k) d", 3);
  const std::vector<AxisOrder::Product> known = {{"g", 2}, {"g r", 4}};
  const AxisOrder::Sizes sizes = order.sizes_from_ours({8, 5}, known);
  CHECK(sizes.at('k') == 1);
  CHECK(order.theirs_shape(sizes, 0) == Shape{4, 5});
  CHECK(order.theirs_shape(sizes, 1) == Shape{2, 5});
  const std::vector<float> ours = counted(40);
  std::vector<std::vector<float>> all;
  std::vector<float> rows;  // the first column, of q, then k, then v
  for (size_t part = 0; part < 3; ++part) {
    std::vector<float> theirs(part == 0 ? 20 : 10);
    order.to_theirs(sizes, part, bytes(ours), bytes(theirs), sizeof(float));
    for (size_t at = 0; at < theirs.size(); at += 5) rows.push_back(theirs[at] / 5);
    all.push_back(std::move(theirs));
  }
  CHECK(rows == std::vector<float>{0, 1, 4, 5, 2, 6, 3, 7});
  check_boxes(order, sizes, {8, 5}, all);
}

TEST_CASE("a dim of size 1 that ours lacks") {
  const AxisOrder order = AxisOrder::parse("p d = 1 p d", 1);
  const AxisOrder::Sizes sizes = order.sizes_from_ours({3, 2}, {});
  CHECK(order.theirs_shape(sizes, 0) == Shape{1, 3, 2});
  check_boxes(order, sizes, {3, 2}, {counted(6)});
}

TEST_CASE("a fused tensor is the parts of a map, one after the other") {
  const NameMap map = NameMap::parse(
      "prefix: m.\ntensors:\n  h.{i}.gate: m.{i}.gate\n  h.{i}.up: m.{i}.up\n"
      "fused: {'m.{i}.both': ['m.{i}.gate', 'm.{i}.up']}\n",
      "map.yaml");
  const auto part = map.fused_with("m.3.up");
  REQUIRE(part);
  CHECK(part->whole == "m.3.both");
  CHECK(part->parts == std::vector<std::string>{"m.3.gate", "m.3.up"});
  CHECK(part->index == 1);
  CHECK_FALSE(map.fused_with("m.3.both"));
}

TEST_CASE("an order that cannot be meant is refused") {
  CHECK(fault_of("o i") == "expected dims = dims, as in o i = i o");
  CHECK(fault_of("o i = i") == "tensor 1 after '=' has the letters 'i', expected 'io'");
  CHECK(fault_of("o o = o") == "contains 'o' twice");
  CHECK(fault_of("(o i = i o") == "'(' is never closed");
  CHECK(fault_of("[a+1] d = a d, d, d", 3) == "has 2 parts in [ ], but 3 tensors are listed");
  CHECK(fault_of("[a+2] d = a d, d", 2) == "'2' in [ ] is neither a letter nor 1");
  CHECK(fault_of("o i = i o, o", 1) == "has the dims of 2 tensors after '=', but 1 are listed");
  CHECK(fault_of("a b = b a, a b", 2) == "joins several tensors without [ ]");
}

TEST_CASE("sizes that do not follow, or contradict each other, are named") {
  const AxisOrder order = AxisOrder::parse("(h k) d = d (h k)", 1);
  const auto fault = [&](const Shape& ours, const std::vector<AxisOrder::Product>& known) -> std::string {
    try {
      order.sizes_from_ours(ours, known);
    } catch (const OrderFault& found) {
      return found.message;
    }
    return "";
  };
  CHECK(fault({6, 2}, {}) == "'h' cannot be derived from the shapes; add it to sizes");
  CHECK(fault({6, 2}, {{"h", 4}}) == "dim 0 of [6, 2] is 6, which is not a multiple of 4");
  CHECK(fault({6, 2}, {{"h", 3}, {"k", 3}}) == "dim 0 of [6, 2] is 6, but the product of its parts is 9");
  CHECK(fault({6}, {}) == "has 2 dims, but the tensor is [6]");
  CHECK(fault({6, 2}, {{"h", 3}}).empty());
}

TEST_CASE("a map gives names, sizes of the job's layers, and constants") {
  const NameMap map = NameMap::parse(R"(
words: {bn: [weight, running_mean]}
tensors:
  h.{i}.qkv.weight:
    name: ["q.{i}", "k.{i}", "v.{i}"]
    order: "(g [r+1+1] k) d = (g r k) d, (g k) d, (g k) d"
    sizes: {g: ["h.{i}.attn.kv_heads", "h.{i}.attn.heads"], g r: "h.{i}.attn.heads"}
  bn.{bn}: norm.{bn}
ignore: ["mask.{i}"]
tied: {head: table}
constants:
  norm.batches: {with: bn.running_mean, dtype: I64, value: 7}
  norm.trained: {with: bn.running_mean, dtype: I64, value: steps}
)",
                                     "map.yaml");
  const auto mapped = map.of_ours("h.0.qkv.weight", attention(6, 2));
  REQUIRE(mapped);
  CHECK(mapped->theirs == std::vector<std::string>{"q.0", "k.0", "v.0"});
  CHECK(mapped->sizes == std::vector<AxisOrder::Product>{{"g", 2}, {"g r", 6}});
  CHECK(map.of_ours("h.0.qkv.weight", attention(6, {}))->sizes[0].second == 6);
  CHECK_THROWS_WITH_AS(map.of_ours("h.1.qkv.weight", attention(6, 2)),
                       doctest::Contains("the job has no layer 'h.1.attn'"), SpecError);
  CHECK_FALSE(map.of_ours("other", attention(6, 2)));
  CHECK(map.ignores("mask.3"));
  CHECK(map.ignores("norm.batches"));
  CHECK_FALSE(map.ignores("norm.weight"));
  CHECK(map.tied_to("head") == "table");
  REQUIRE(map.constants_with("bn.running_mean", 20).size() == 2);
  CHECK(map.constants_with("bn.running_mean", 20)[0].value == 7);
  CHECK(map.constants_with("bn.running_mean", 20)[1].value == 20);
  CHECK(map.constants_with("bn.weight", 20).empty());
}

TEST_CASE("`each` lists a tensor of theirs for each index of dim 0") {
  const NameMap map = NameMap::parse(R"(
tensors:
  h.{i}.up:
    name: ["h.{i}.{e}.gate", "h.{i}.{e}.up"]
    each: {e: "h.{i}.attn.heads"}
    order: "[1+1] h d = h d, h d"
)",
                                     "map.yaml");
  const auto mapped = map.of_ours("h.0.up", attention(3, {}));
  REQUIRE(mapped);
  CHECK(mapped->theirs ==
        std::vector<std::string>{"h.0.0.gate", "h.0.0.up", "h.0.1.gate", "h.0.1.up", "h.0.2.gate", "h.0.2.up"});
  CHECK(mapped->each == 3);
  CHECK(mapped->ordered_parts() == 2);
  CHECK(mapped->ordered_shape({3, 2, 5, 4}) == Shape{2, 5, 4});
  CHECK_THROWS_WITH_AS(mapped->ordered_shape({4, 2, 5, 4}), doctest::Contains("is 3, but h.0.up is [4, 2, 5, 4]"),
                       SpecError);
}

TEST_CASE("the prefix goes where no name of the file has it") {
  const char* const text = "prefix: model.\ntensors: {a: model.a, b: head.b}\nignore: [model.mask]\n";
  const auto theirs = [&](const std::vector<std::string>& names) {
    NameMap map = NameMap::parse(text, "map.yaml");
    map.drop_prefix_unless_used(names);
    return map.of_ours("a", {})->theirs[0] + " " + map.of_ours("b", {})->theirs[0] +
           (map.ignores("mask") ? " mask" : "");
  };
  CHECK(theirs({"model.a", "head.b"}) == "model.a head.b");
  CHECK(theirs({"a", "head.b"}) == "a head.b mask");
}

TEST_CASE("a tensor of two patterns is an error at the second") {
  const NameMap map = NameMap::parse("tensors:\n  h.{i}: a.{i}\n  h.{j}: b.{j}\n", "map.yaml");
  CHECK_THROWS_WITH_AS(map.of_ours("h.1", {}),
                       doctest::Contains("map.yaml:3:3: tensors.h.{j}: 'h.1' also matches the pattern 'h.{i}'"),
                       SpecError);
}

TEST_CASE("all that is wrong with a map is said, with its place") {
  using List = std::vector<std::string>;
  CHECK(errors_of("tensors:\n  h.{i: a\n  b.{k}: c\n") ==
        List{"2:3 tensors.h.{i: 'h.{i': '{' is never closed",
             "3:10 tensors.b.{k}: 'c' has the placeholders {}, but 'b.{k}' has {k}"});
  CHECK(errors_of("tensors: {a: {nam: b}}\n") ==
        List{"1:14 tensors.a.name: is missing", "1:15 tensors.a.nam: unknown field"});
  CHECK(errors_of("tensors: {a: [b, c]}\n") ==
        List{"1:11 tensors.a: lists several tensors, but no order that joins them"});
  CHECK(errors_of("tensors: {a: {name: b, order: 'x y = y'}}\n") ==
        List{"1:31 tensors.a.order: 'x y = y' tensor 1 after '=' has the letters 'y', expected 'xy'"});
  CHECK(errors_of("tensors: {a: {name: b, order: 'x = x', sizes: {z: 3}}}\n") ==
        List{"1:48 tensors.a.sizes.z: 'z' is not a letter of the order"});
  CHECK(errors_of("tensors: {a: {name: b, order: 'x = x', sizes: {x: heads}}}\n") ==
        List{"1:51 tensors.a.sizes.x: 'heads' is neither a number nor layer.field"});
  CHECK(errors_of("tensors: {a: b}\nconstants: {c: {with: a, dtype: I65}}\n") ==
        List{"2:33 constants.c.dtype: 'I65' is not a safetensors type"});
  CHECK(errors_of("tensors: {a: b}\nconstants: {c: {with: a, dtype: I64, value: stops}}\n") ==
        List{"2:45 constants.c.value: must be an integer or steps, not 'stops'"});
  CHECK(errors_of("tensors: {a: {name: 'b.{e}', each: {e: 2}}}\n") ==
        List{"1:37 tensors.a.each: needs an order of the dims after dim 0"});
  CHECK(errors_of("tensors: {'a.{i}': {name: 'b.{i}', each: {i: 2}, order: 'x = x'}}\n") ==
        List{"1:43 tensors.a.{i}.each: 'i' already has another meaning"});
  CHECK(errors_of("tensors: {a: {name: b, each: {e: 2}, order: 'x = x'}}\n") ==
        List{"1:21 tensors.a: 'b' has the placeholders {}, but 'a' has {e}"});
  CHECK(errors_of("tensors: {a: {name: b, each: {e: 2, f: 3}, order: 'x = x'}}\n") ==
        List{"1:30 tensors.a.each: must have one placeholder"});
  CHECK(errors_of("words: {w: [a]}\n") == List{"1:1 tensors: is missing"});
}
