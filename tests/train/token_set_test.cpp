// Tests of data sets of token files and of text files: which files are accepted, and which windows are samples.
#include "engine/train/data/token_set.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "engine/base/error.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/file_patterns.h"
#include "engine/train/data/token_file.h"
#include "engine/train/data/token_writer.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

template <class T>
ByteVector token_set_bytes_of(const std::vector<T>& values) {
  ByteVector bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

ByteVector operator+(ByteVector a, const ByteVector& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

ByteVector header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> words(256);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return token_set_bytes_of(words);
}

ByteVector ascending(int first, int count) {
  std::vector<uint16_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<uint16_t>(first + i));
  return token_set_bytes_of(tokens);
}

DatasetSpec set_of(const std::string& type, std::vector<std::string> paths, int64_t length, int64_t stride = 0) {
  DatasetSpec spec;
  spec.type = type;
  spec.paths = std::move(paths);
  spec.length = length;
  spec.stride = stride;
  return spec;
}

using Window = std::vector<int32_t>;

std::vector<Window> windows(const DatasetSpec& spec, int64_t shift) {
  const TokenSet set(spec);
  std::vector<Window> all;
  std::vector<uint8_t> scratch;
  for (int64_t s = 0; s < set.size(); ++s) {
    all.emplace_back(static_cast<size_t>(spec.length));
    set.read(s, scratch, shift == 0 ? all.back().data() : nullptr, shift == 1 ? all.back().data() : nullptr);
  }
  return all;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const SpecError& error) {
    const Diagnostic& d = error.diagnostics().at(0);
    return d.path + ": " + d.message;
  } catch (const EnvError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(const DatasetSpec& spec) {
  return error_of([&] { TokenSet set(spec); });
}

}  // namespace

TEST_CASE("a sample is a window of tokens, and its label the token after each") {
  const ScratchFolder folder;
  const std::string file = folder.write("a.bin", ascending(0, 10));
  CHECK(windows(set_of("tokens", {file}, 4), 0) == std::vector<Window>{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(windows(set_of("tokens", {file}, 4), 1) == std::vector<Window>{{1, 2, 3, 4}, {5, 6, 7, 8}});
  CHECK(windows(set_of("tokens", {file}, 3), 1).back() == Window{7, 8, 9});
  CHECK(windows(set_of("tokens", {file}, 9), 1) == std::vector<Window>{{1, 2, 3, 4, 5, 6, 7, 8, 9}});
}

TEST_CASE("with a stride, windows overlap or skip tokens") {
  const ScratchFolder folder;
  const std::string file = folder.write("a.bin", ascending(0, 8));
  CHECK(windows(set_of("tokens", {file}, 4, 1), 0) ==
        std::vector<Window>{{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}});
  CHECK(windows(set_of("tokens", {file}, 2, 5), 0) == std::vector<Window>{{0, 1}, {5, 6}});
}

TEST_CASE("windows of tokens stay in a file, and those of text continue in the next") {
  const ScratchFolder folder;
  folder.write("b.bin", ascending(10, 5));
  folder.write("a.bin", ascending(0, 6));
  CHECK(windows(set_of("tokens", {folder.path() + "/*.bin"}, 2), 0) ==
        std::vector<Window>{{0, 1}, {2, 3}, {10, 11}, {12, 13}});
  folder.write("1.txt", {'a', 'b', 'c'});
  folder.write("2.txt", {});
  folder.write("3.txt", {'d'});
  folder.write("4.txt", {'e', 'f', 255});
  CHECK(windows(set_of("text", {folder.path() + "/*.txt"}, 3), 0) ==
        std::vector<Window>{{'a', 'b', 'c'}, {'d', 'e', 'f'}});
  CHECK(windows(set_of("text", {folder.path() + "/*.txt"}, 3), 1) ==
        std::vector<Window>{{'b', 'c', 'd'}, {'e', 'f', 255}});
}

TEST_CASE("files of nanoGPT and of llm.c give the same samples") {
  const ScratchFolder folder;
  const std::vector<int32_t> tokens = {5, 0, 65535, 7, 8};
  const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
  const std::vector<Window> expected = {{5, 0}, {65535, 7}};
  CHECK(windows(set_of("tokens", {folder.write("raw16", token_set_bytes_of(narrow))}, 2), 0) == expected);
  CHECK(windows(set_of("tokens", {folder.write("gpt2", header(20240520, 1, 5) + token_set_bytes_of(narrow))}, 2), 0) ==
        expected);
  DatasetSpec wide = set_of("tokens", {folder.write("raw32", token_set_bytes_of(tokens))}, 2);
  wide.token_dtype = "int32";
  CHECK(windows(wide, 0) == expected);
  const std::string llama = folder.write("llama3", header(20240801, 7, 5) + token_set_bytes_of(tokens));
  CHECK(windows(set_of("tokens", {llama}, 2), 0) == expected);
}

TEST_CASE("a file that is not a token file is named, with the reason") {
  const ScratchFolder folder;
  const auto error = [&](const ByteVector& bytes) {
    const std::string file = folder.write("x.bin", bytes), text = error_of(set_of("tokens", {file}, 2));
    const std::string expected = "dataset.path: " + file + ": ";
    CHECK(text.starts_with(expected));
    return text.substr(std::min(text.size(), expected.size()));
  };
  CHECK(error({}) == "is empty; expected tokens");
  CHECK(error({1, 0, 2, 0, 3, 0, 4}).starts_with("7 bytes are not a whole number of uint16 tokens of 2 bytes"));
  CHECK(error(header(20240520, 2, 3) + ascending(0, 3))
            .starts_with("byte 4: expected version 1 of the llm.c token format"));
  CHECK(
      error(header(20240520, 1, 4) + ascending(0, 3)).starts_with("byte 8: the header specifies 4 tokens of 2 bytes"));
  CHECK(
      error(header(20240520, 1, 2) + ascending(0, 3)).starts_with("byte 8: the header specifies 2 tokens of 2 bytes"));
  CHECK(error(header(20240520, 1, -1) + ascending(0, 3)).starts_with("byte 8: the header specifies -1 tokens"));
  ByteVector cut = header(20240520, 1, 3);
  cut.resize(1023);
  CHECK(error(cut).starts_with("starts like an llm.c file (20240520), but has 1,023 bytes"));
  CHECK(error(header(20240522, 1, 3) + ascending(0, 3))
            .starts_with("byte 0: 20240522 is the magic number of another llm.c file"));
  CHECK(error({0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0}).starts_with("is a NumPy .npy file"));
  CHECK(error({'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 0})
            .starts_with("is the index of a Megatron data set, whose tokens are in the .bin file"));
  CHECK(error({16, 0, 0, 0, 0, 0, 0, 0, '{', '"', 't', '"'}).starts_with("is a safetensors file"));
  CHECK(error(ByteVector(400, 'a')).starts_with("is a text"));
  CHECK(error(ByteVector(3000, 0)).starts_with("all of its tokens are 0"));
  ByteVector padded(3000, 0);
  padded.back() = 1;
  CHECK_NOTHROW(TokenSet(set_of("tokens", {folder.write("x.bin", padded)}, 2)));
  std::vector<int32_t> wide(100);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<int32_t>(i * 37);
  CHECK(error(token_set_bytes_of(wide)).starts_with("every second 16-bit number is 0"));
}

TEST_CASE("a file or a text that is shorter than a window and its label is refused") {
  const ScratchFolder folder;
  folder.write("a.bin", ascending(0, 9));
  const std::string file = folder.write("b.bin", ascending(0, 4));
  CHECK(error_of(set_of("tokens", {folder.path() + "/*.bin"}, 4)) ==
        "dataset.path: " + file + " has 4 tokens, but a sample of 4 tokens and its label need 5");
  folder.write("a.txt", {'a'});
  CHECK(error_of(set_of("text", {folder.path() + "/*.txt"}, 1)) ==
        "dataset.path: the text of dataset.path has 1 tokens, but a sample of 1 tokens and its label need 2");
}

TEST_CASE("a pattern without files is refused at its place in the list") {
  const ScratchFolder folder;
  const std::string file = folder.write("a.bin", ascending(0, 9)), none = folder.path() + "/*.none";
  CHECK(error_of(set_of("tokens", {none}, 2)) == "dataset.path: no file matches '" + none + "'");
  CHECK(error_of(set_of("tokens", {file, none}, 2)) == "dataset.path[1]: no file matches '" + none + "'");
  CHECK(error_of(set_of("tokens", {file + "x"}, 2)) == "dataset.path: there is no file '" + file + "x'");
  CHECK(error_of(set_of("tokens", {folder.path()}, 2)) == "dataset.path: '" + folder.path() + "' is a folder");
}

TEST_CASE("patterns match in sorted order, ** matches any folders, and nothing matches hidden names") {
  const ScratchFolder folder;
  const std::string root = folder.path();
  fs::create_directories(root + "/sub/deep");
  fs::create_directories(root + "/.hidden");
  for (const char* name : {"b.h", "a.h", "c.cpp", "sub/d.h", "sub/deep/e.h", ".hidden/f.h", ".g.h"})
    folder.write(name, {1});
  fs::create_directory_symlink(root, root + "/sub/loop");
  const auto names = [&](const std::string& pattern) {
    std::string all;
    for (const std::string& file : files_matching(root + "/" + pattern)) all += file.substr(root.size() + 1) + " ";
    return all;
  };
  CHECK(names("*.h") == "a.h b.h ");
  CHECK(names("?.h") == "a.h b.h ");
  CHECK(names("**/*.h") == "a.h b.h sub/d.h sub/deep/e.h ");
  CHECK(names("**/**/*.h") == "a.h b.h sub/d.h sub/deep/e.h ");
  CHECK(names("sub/**/e.h") == "sub/deep/e.h ");
  CHECK(names("*/d.h") == "sub/d.h ");
  CHECK(names(".*.h") == ".g.h ");
  CHECK(names("sub") == "");
  CHECK(names("none/*.h") == "");
}

TEST_CASE("a file that two patterns match is read once, and the order is that of the patterns") {
  const ScratchFolder folder;
  folder.write("1.txt", {'1'});
  folder.write("2.txt", {'2', '\n'});
  const std::string root = folder.path();
  CHECK(windows(set_of("text", {root + "/2.txt", root + "/*.txt"}, 2), 0) == std::vector<Window>{{'2', '\n'}});
  CHECK(windows(set_of("text", {root + "/2.txt", root + "/*.txt"}, 2), 1) == std::vector<Window>{{'\n', '1'}});
}

TEST_CASE("the first token out of range is reported with its file, for every type") {
  const ScratchFolder folder;
  folder.write("a.bin", ascending(0, 5000));
  folder.write("b.bin", ascending(0, 5));
  const TokenSet set(set_of("tokens", {folder.path() + "/*.bin"}, 2));
  constexpr int64_t kAll = 1 << 20;
  CHECK_FALSE(set.first_stray(5000, kAll));
  const auto stray = set.first_stray(4999, kAll);
  REQUIRE(stray);
  CHECK(stray->file == folder.path() + "/a.bin");
  CHECK(stray->place == 4999);
  CHECK(stray->token == 4999);
  CHECK_FALSE(set.first_stray(4999, 4999));
  CHECK(set.first_stray(3, kAll)->place == 3);
  const std::string file = folder.write("c.bin", token_set_bytes_of(std::vector<int32_t>{1, 2, -3, 4}));
  DatasetSpec wide = set_of("tokens", {file}, 2);
  wide.token_dtype = "int32";
  CHECK(TokenSet(wide).first_stray(5, kAll)->token == -3);
  CHECK(TokenSet(wide).first_stray(int64_t{1} << 40, kAll)->place == 2);
  const std::string text = folder.write("d.txt", {'a', 200});
  CHECK(TokenSet(set_of("text", {text}, 1)).first_stray(128, kAll)->token == 200);
  CHECK_FALSE(TokenSet(set_of("text", {text}, 1)).first_stray(256, kAll));
}

TEST_CASE("an empty list of tokens may have a null pointer, and none of its tokens is out of range") {
  // A regression that fuzz_tokens found: memcpy from a null pointer, which the preset asan reports.
  for (const TokenType type : {TokenType::u8, TokenType::u16, TokenType::i32}) {
    copy_tokens({}, type, 0, 0, nullptr);
    CHECK_FALSE(first_outside({}, type, 1));
  }
}

TEST_CASE("a token file that becomes shorter during a run is an error that names it") {
  const ScratchFolder folder;
  const std::string file = folder.write("a.bin", ascending(0, 9000));
  const TokenSet set(set_of("tokens", {file}, 4));
  std::vector<uint8_t> scratch;
  Window window(4);
  fs::resize_file(file, 10'000);
  set.read(0, scratch, window.data(), nullptr);
  CHECK(window == Window{0, 1, 2, 3});
  const std::string error = error_of([&] { set.read(2000, scratch, window.data(), nullptr); });
  CHECK(error.starts_with(file + ": cannot be read: it ends at byte "));
  CHECK(set.where(2000) == file + ": token 8,000");
}

TEST_CASE("windows announced in advance have the same content") {
  const ScratchFolder folder;
  folder.write("a.txt", {'a', 'b', 'c'});
  const TokenSet set(set_of("text", {folder.path() + "/a.txt", folder.write("b.txt", {'d', 'e'})}, 3));
  std::vector<uint8_t> scratch;
  Window data(3), label(3);
  set.expect(0);
  set.read(0, scratch, data.data(), label.data());
  CHECK(data == Window{'a', 'b', 'c'});
  CHECK(label == Window{'b', 'c', 'd'});
}

TEST_CASE("a set of tokens has integer windows as data and labels") {
  const ScratchFolder folder;
  const DatasetSpec spec = set_of("tokens", {folder.write("a.bin", ascending(0, 10))}, 4);
  const DataShapes shapes = read_data_shapes(spec, 1);
  CHECK(shapes == data_and_label({4}, {4}, true, true));
  CHECK(read_data_size(spec, 1) == 2);
  const std::unique_ptr<Dataset> set = open_dataset(spec, 1);
  Window label(4);
  set->read("label", 1, label.data());
  CHECK(label == Window{5, 6, 7, 8});
}

TEST_CASE("written tokens are read back, and a file is replaced only on request") {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/out.bin";
  for (const bool with_header : {true, false}) {
    TokenWriter writer(file, TokenType::u16, with_header, !with_header);
    writer.write_bytes(ByteVector{1, 2});
    writer.write_bytes(ByteVector{255});
    CHECK(fs::exists(file) == !with_header);
    writer.finish();
    CHECK(fs::file_size(file) == 6 + (with_header ? 1024 : 0));
    CHECK(windows(set_of("tokens", {file}, 2), 1) == std::vector<Window>{{2, 255}});
  }
  CHECK(error_of([&] {
          TokenWriter again(file, TokenType::u16, true, false);
        }).find("already exists; replace it with --force") != std::string::npos);
  { TokenWriter dropped(folder.path() + "/dropped.bin", TokenType::u16, true, false); }
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++files;
  CHECK(files == 1);
}
