// Tests of CSV files: values, quotes, classes from words, and errors that state the file and the line.
#include "engine/train/data/sources/csv.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <limits>

#include "engine/train/data/sources/csv_text.h"
#include "tests/train/sources/read_source.h"

using namespace trainctl;

namespace {

std::string error_of_csv(const ScratchFolder& folder, const std::string& text, std::vector<CsvField> fields,
                         bool header = true) {
  const std::string path = folder.write("t.csv", to_bytes(text));
  return error_of([&] {
    const auto source = open_csv({.paths = {path}, .fields = std::move(fields), .header = header});
    for (int64_t s = 0; s < source->size(); ++s) read_sample(*source, s);
  });
}

const CsvField kA = {.name = "x", .columns = {"a"}};

}  // namespace

TEST_CASE("a row of a table is a sample, and columns are grouped into fields") {
  const ScratchFolder folder;
  const std::string path =
      folder.write("t.csv", to_bytes("a,b,kind,c\n1,2.5,dog,3000000000\r\n -4 , 1e-3,cat,-5\n\n\n7,.5,dog,+6"));
  const auto source = open_csv(
      {.paths = {path},
       .fields = {{.name = "features", .columns = {"b", "a"}},
                  {.name = "kind", .columns = {"kind"}, .scalar = true, .type = ElementType::i32, .words = true},
                  {.name = "id", .columns = {"c"}, .type = ElementType::i64}}});
  REQUIRE(source->size() == 3);
  CHECK(fields_of(*source) == Texts{"features: f32 [2]", "kind: i32 []", "id: i64 [1]"});
  CHECK(all_values<float>(*source, 0) == std::vector<float>{2.5f, 1, 1e-3f, -4, .5f, 7});
  CHECK(all_values<int32_t>(*source, 1) == std::vector<int32_t>{1, 0, 1});
  CHECK(all_values<int64_t>(*source, 2) == std::vector<int64_t>{3'000'000'000, -5, 6});
  CHECK(source->class_names() == Texts{"cat", "dog"});
  CHECK(source->where(1) == path + ":3");
  CHECK(source->where(2) == path + ":6");
}

TEST_CASE("columns of a table may be numbers from 1, with another delimiter and without a header") {
  const ScratchFolder folder;
  const std::string path = folder.write("t.csv", to_bytes("1;10\n2;20\n"));
  const auto source =
      open_csv({.paths = {path}, .fields = {{.name = "x", .columns = {"2", "1"}}}, .header = false, .delimiter = ';'});
  CHECK(all_values<float>(*source, 0) == std::vector<float>{10, 1, 20, 2});
}

TEST_CASE("quoted values hold delimiters, line ends and quotes") {
  const ScratchFolder folder;
  const std::string path =
      folder.write("t.csv", to_bytes("w,\"n,\"\"1\"\"\"\n\"a,b\",1\n\"say \"\"hi\"\"\r\nthere\",2\n\"\",3\n"));
  const auto source = open_csv({.paths = {path},
                                .fields = {{.name = "w", .columns = {"w"}, .type = ElementType::i32, .words = true},
                                           {.name = "n", .columns = {"n,\"1\""}}}});
  CHECK(source->class_names() == Texts{"", "a,b", "say \"hi\"\r\nthere"});
  CHECK(all_values<int32_t>(*source, 0) == std::vector<int32_t>{1, 2, 0});
  CHECK(all_values<float>(*source, 1) == std::vector<float>{1, 2, 3});
  CHECK(source->where(2) == path + ":5");
}

TEST_CASE("a byte order mark is not part of the name of the first column") {
  const ScratchFolder folder;
  const std::string path = folder.write("t.csv", to_bytes("\xEF\xBB\xBF"
                                                          "a\n5\n"));
  CHECK(all_values<float>(*open_csv({.paths = {path}, .fields = {kA}}), 0) == std::vector<float>{5});
}

TEST_CASE("several tables with the same header form one set, in which equal words have equal numbers") {
  const ScratchFolder folder;
  folder.write("0.csv", to_bytes("a\nfox\nbee\n"));
  folder.write("1.csv", to_bytes("a\nant\nfox\n"));
  folder.write("2.csv", to_bytes("b\n1\n"));
  const CsvField words = {.name = "label", .columns = {"a"}, .type = ElementType::i64, .words = true};
  const auto source = open_csv({.paths = {folder.path() + "/0.csv", folder.path() + "/0*"}, .fields = {words}});
  CHECK(source->size() == 2);
  const auto both = open_csv({.paths = {folder.path() + "/0.csv", folder.path() + "/1.csv"}, .fields = {words}});
  CHECK(all_values<int64_t>(*both, 0) == std::vector<int64_t>{2, 1, 0, 2});
  CHECK(contains(error_of([&] { open_csv({.paths = {folder.path() + "/*.csv"}, .fields = {words}}); }),
                 "2.csv has the columns b, but " + folder.path() + "/0.csv has a"));
}

TEST_CASE("classes listed in the job keep their numbers, and any other word is an error with its line") {
  const ScratchFolder folder;
  const CsvField words = {
      .name = "x", .columns = {"a"}, .type = ElementType::i32, .words = true, .classes = {"no", "yes"}};
  const std::string path = folder.write("t.csv", to_bytes("a\nyes\nno\n"));
  CHECK(all_values<int32_t>(*open_csv({.paths = {path}, .fields = {words}}), 0) == std::vector<int32_t>{1, 0});
  CHECK(error_of_csv(folder, "a\nyes\nmaybe\n", {words}) == path +
                                                                ":3: column 'a': 'maybe' is not one of the 2 "
                                                                "classes");
}

TEST_CASE("numbers are read with full precision, and a value that does not fit is an error with its line") {
  const ScratchFolder folder;
  const auto value = [&](const std::string& text) {
    const std::string path = folder.write("v.csv", to_bytes("a\n" + text + "\n"));
    return all_values<float>(*open_csv({.paths = {path}, .fields = {kA}}), 0).at(0);
  };
  CHECK(value("0.1") == 0.1f);
  CHECK(value("16777217") == 16777216.0f);
  CHECK(value("1e-50") == 0.0f);
  CHECK(value("1e-40") == 1e-40f);
  CHECK(value("-inf") == -std::numeric_limits<float>::infinity());
  const std::string at = folder.path() + "/t.csv:2: column 'a': ";
  for (const char* text : {"x", "1.5.2", "1e39", "--1", "+-1", "0x10", "1 2", " ", "\"\""})
    CHECK(contains(error_of_csv(folder, fmt::format("a,b\n{},1\n", text), {kA}),
                   at + "expected a number of type f32, found '"));
  CsvField integers = kA;
  integers.type = ElementType::i32;
  for (const char* text : {"2147483648", "1.5", "1.", "1e3", "nan", ".0"})
    CHECK(
        contains(error_of_csv(folder, fmt::format("a\n{}\n", text), {integers}), at + "expected a number of type i32"));
  const std::string path =
      folder.write("whole.csv", to_bytes("a\n3.0\n-2.00\n"));  // as pandas writes integers with gaps
  CHECK(all_values<int32_t>(*open_csv({.paths = {path}, .fields = {integers}}), 0) == std::vector<int32_t>{3, -2});
}

TEST_CASE("a wrong value in row 900001 is an error that names that line") {
  const ScratchFolder folder;
  std::string text = "a,b\n";
  for (int row = 2; row < 900'001; ++row) text += "1,2\n";
  const std::string path = folder.write("t.csv", to_bytes(text + "1,2,3\n1,x\n1,2\n"));
  const auto source = open_csv({.paths = {path}, .fields = {{.name = "x", .columns = {"a", "b"}}}});
  REQUIRE(source->size() == 900'002);
  CHECK(error_of([&] { read_sample(*source, 899'999); }) == path + ":900001: expected 2 values, found 3");
  CHECK(error_of([&] { read_sample(*source, 900'000); }) ==
        path + ":900002: column 'b': expected a number of type f32, found 'x'");
  CHECK(values_of<float>(read_sample(*source, 900'001)[0]) == std::vector<float>{1, 2});
  CHECK(source->memory_bytes() < 900'002 * 5);
}

TEST_CASE("quotes in wrong places are errors with the line at which the row begins") {
  const ScratchFolder folder;
  const std::string at = folder.path() + "/t.csv:";
  CHECK(contains(error_of_csv(folder, "a,b\n1,2\n5\"2,1\n", {kA}),
                 at + "3: value 1: unexpected quote in a value that does not"));
  CHECK(contains(error_of_csv(folder, "a,b\n1,\"2\"x\n", {kA}), at + "2: value 2: expected the delimiter ',' after"));
  CHECK(contains(error_of_csv(folder, "a,b\n1,2\n\"1,2\n1,2\n", {kA}),
                 at + "3: a quote that starts in this row is never closed"));
  const std::string open = "a,b\n1,2\n\"" + std::string(3 << 20, 'x') + "\n";
  CHECK(contains(error_of_csv(folder, open, {kA}), at + "3: the row is longer than 1 MiB"));
}

TEST_CASE("a missing column, a table without rows and a Parquet file are errors") {
  const ScratchFolder folder;
  const std::string none = error_of_csv(folder, "alpha,beta\n1,2\n", {{.name = "x", .columns = {"alpa"}}});
  CHECK(contains(none, "dataset.fields.x: " + folder.path() +
                           "/t.csv has no column 'alpa' (columns: alpha, beta; did you mean 'alpha'?)"));
  CHECK(contains(error_of_csv(folder, "1,2\n", {{.name = "x", .columns = {"3"}}}, false), "columns are 1 to 2"));
  CHECK(contains(error_of_csv(folder, "a\n", {kA}), "contains no rows"));
  CHECK(contains(error_of_csv(folder, "", {kA}), "contains no rows"));
  folder.write("t.parquet", {1});
  const std::string parquet = error_of([&] { open_csv({.paths = {folder.path() + "/t.parquet"}, .fields = {kA}}); });
  CHECK(contains(parquet, "is Parquet, which a data set of this type does not read"));
  CHECK(contains(parquet, "dataset.type: table reads it"));
}

TEST_CASE("a text has the same rows wherever reading splits it") {
  const std::string text = "a,\"b\nc\"\r\n\"\"\"\",x\n1\"2,\"3\"\"\n\",4\n";
  Texts whole;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(whole.back().size()))
    whole.emplace_back(rest.substr(0, row_bytes(rest, ',', true).value()));
  CHECK(whole == Texts{"a,\"b\nc\"\r\n", "\"\"\"\",x\n", "1\"2,\"3\"\"\n\",4\n"});
  for (size_t row = 0, at = 0; row < whole.size(); at += whole[row++].size())
    for (size_t cut = 0; cut < text.size() - at; ++cut) {
      const auto bytes = row_bytes(std::string_view(text).substr(at, cut), ',', false);
      if (bytes) CHECK(*bytes == whole[row].size());
      CHECK(bytes.has_value() == (cut >= whole[row].size()));
    }
}

TEST_CASE("a column name that a table has twice is refused where a field uses it") {
  const ScratchFolder folder;
  CHECK(contains(error_of_csv(folder, "a,y,a\n1,0,2\n", {kA}), "t.csv has the column 'a' twice, as columns 1 and 3"));
  CHECK(error_of_csv(folder, "a,y,a\n1,0,2\n", {{.name = "x", .columns = {"y"}}}) == "no error");
  CHECK(error_of_csv(folder, "a,y,a\n1,0,2\n", {{.name = "x", .columns = {"3"}}}) == "no error");
}
