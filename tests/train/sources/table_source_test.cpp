// Tests of tables as sources of samples.
#include "engine/train/data/sources/table_source.h"

#include <doctest/doctest.h>

#include "tests/train/sources/read_source.h"

using namespace trainctl;

namespace {

std::string table_error(const ScratchFolder& folder, const std::string& text, const TableField& field) {
  return error_of([&] {
    const auto source = open_table({{folder.write("t.jsonl", to_bytes(text))}, {field}});
    for (int64_t i = 0; i < source->size(); ++i) read_sample(*source, i);
  });
}

}  // namespace

TEST_CASE("columns of JSON Lines become numbers, lists, joined columns and numbered words") {
  const ScratchFolder folder;
  const std::string first = folder.write("a.jsonl", to_bytes("{\"x\": 1.5, \"n\": 2, \"l\": [[1, 2]], \"w\": \"b\"}\n"
                                                             "{\"x\": 2, \"n\": 3, \"l\": [[3, 4]], \"w\": \"a\"}\n"));
  const auto source = open_table({{first},
                                  {{.name = "joined", .columns = {"x", "n"}},
                                   {.name = "list", .columns = {"l"}},
                                   {.name = "number", .columns = {"n"}, .integers = true},
                                   {.name = "label", .columns = {"w"}, .scalar = true}}});
  CHECK(fields_of(*source) == Texts{"joined: f32 [2]", "list: f32 [1, 2]", "number: i32 [1]", "label: i32 []"});
  CHECK(all_values<float>(*source, 0) == std::vector<float>{1.5, 2, 2, 3});
  CHECK(all_values<float>(*source, 1) == std::vector<float>{1, 2, 3, 4});
  CHECK(all_values<int32_t>(*source, 2) == std::vector<int32_t>{2, 3});
  CHECK(all_values<int32_t>(*source, 3) == std::vector<int32_t>{1, 0});
  CHECK(source->class_names() == Texts{"a", "b"});
  CHECK(source->where(1).ends_with("a.jsonl:2"));
}

TEST_CASE("a row of a table that does not fit the first one is an error with its place") {
  const ScratchFolder folder;
  const TableField x{.name = "x", .columns = {"x"}};
  const std::string at = folder.path() + "/t.jsonl:2: ";
  CHECK(table_error(folder, "{\"x\": [1, 2]}\n{\"x\": [1]}\n", x) ==
        at + "'x' has the shape [1], but the first row has [2]");
  CHECK(table_error(folder, "{\"x\": 1}\n{\"y\": 1}\n", x) == at + "'x' is null");
  CHECK(contains(table_error(folder, "{\"x\": 1}\n[]\n", x), at + "expected a JSON object"));
  CHECK(contains(table_error(folder, "{\"x\": 1}\n{\"x\": \"a\"}\n", x), at + "'x': expected number"));
  CHECK(contains(table_error(folder, "{\"x\": 1.5}\n", {.name = "x", .columns = {"x"}, .integers = true}),
                 "expected a 32-bit integer, found 1.5"));
  CHECK(contains(table_error(folder, "{\"xx\": 1}\n", x), "has no column 'x' (columns: xx; did you mean 'xx'?)"));
  CHECK(contains(table_error(folder, "", x), "contains no rows"));
  CHECK(contains(table_error(folder, "{\"x\": {\"a\": 1}}\n", x), "the column 'x' is nested"));
  CHECK(contains(table_error(folder, "{\"x\": \"a\"}\n", {.name = "x", .columns = {"x"}, .classes = {"b"}}),
                 "'a' is not one of the 1 classes"));
}
