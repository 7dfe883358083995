// Tests of folders of images: what counts as a class, the order of classes and images, and which folders are refused.
#include "engine/train/data/sources/image_folder.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "engine/base/text.h"
#include "tests/train/sources/read_source.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// Adds a file whose content is its name.
void add(const ScratchFolder& folder, const std::string& name) {
  fs::create_directories(fs::path(folder.path()) / fs::path(name).parent_path());
  folder.write(name, to_bytes(name));
}

std::unique_ptr<Source> open(const ScratchFolder& folder, Texts classes = {}) {
  return open_image_folder({.paths = {folder.path()}, .classes = std::move(classes)});
}

/// The text "label path" for each sample.
Texts samples_of(const Source& source, const ScratchFolder& folder) {
  Texts samples;
  for (int64_t s = 0; s < source.size(); ++s) {
    const auto fields = read_sample(source, s);
    CHECK(source.where(s) == folder.path() + "/" + text_of(fields[0]));
    samples.push_back(fmt::format("{} {}", values_of<int32_t>(fields[1])[0], text_of(fields[0])));
  }
  return samples;
}

}  // namespace

TEST_CASE("a folder is a class, and its images at any depth are of it, files before folders") {
  const ScratchFolder folder;
  for (const char* name : {"dog/b.jpg", "dog/a.JPEG", "cat/z.png", "cat/in/y.jpg", "cat/in/deep/x.jpg", "cat/an/q.png",
                           "cat/notes.txt", "cat/.hidden.jpg", ".git/c.jpg", "readme.md"})
    add(folder, name);
  const auto source = open(folder);
  CHECK(samples_of(*source, folder) ==
        Texts{"0 cat/z.png", "0 cat/an/q.png", "0 cat/in/y.jpg", "0 cat/in/deep/x.jpg", "1 dog/a.JPEG", "1 dog/b.jpg"});
  CHECK(source->class_names() == Texts{"cat", "dog"});
  CHECK(fields_of(*source) == Texts{"image: image", "label: i32 []"});
}

TEST_CASE("a label of an image folder may be i64, and only the wanted fields are read") {
  const ScratchFolder folder;
  add(folder, "a/1.jpg");
  add(folder, "b/1.jpg");
  const auto source = open_image_folder({.paths = {folder.path() + "/"}, .label_type = ElementType::i64});
  std::vector<FieldBytes> out(2);
  fs::remove(folder.path() + "/b/1.jpg");
  source->read(1, {false, true}, out);
  CHECK(values_of<int64_t>(out[1]) == std::vector<int64_t>{1});
  CHECK(contains(error_of([&] { read_sample(*source, 1); }), "/b/1.jpg: cannot be read: No such file or directory"));
}

TEST_CASE("classes listed in the job keep their numbers, and may lack a folder") {
  const ScratchFolder folder;
  add(folder, "cat/1.jpg");
  add(folder, "dog/1.jpg");
  CHECK(samples_of(*open(folder, {"dog", "bird", "cat"}), folder) == Texts{"2 cat/1.jpg", "0 dog/1.jpg"});
  CHECK(contains(error_of([&] {
                   open(folder, {"dog", "cats"});
                 }),
                 "has the class 'cat', which is not one of the 2 "
                 "known classes"));
}

TEST_CASE("images by glob are of the class of their folder, class by class") {
  const ScratchFolder folder;
  for (const char* name : {"x/cat/2.jpg", "x/dog/1.jpg", "y/cat/1.jpg", "y/dog/2.png", "y/dog/note.txt"})
    add(folder, name);
  const auto source = open_image_folder({.paths = {folder.path() + "/**/*"}});
  CHECK(samples_of(*source, folder) == Texts{"0 x/cat/2.jpg", "0 y/cat/1.jpg", "1 x/dog/1.jpg", "1 y/dog/2.png"});
}

TEST_CASE("the error for a folder without classes says what was expected") {
  const ScratchFolder folder;
  CHECK(contains(error_of([&] { open(folder); }), "contains neither images nor folders"));
  add(folder, "1.jpg");
  const std::string flat = error_of([&] { open(folder); });
  CHECK(contains(flat, "contains 1 image but no folders, so there are no classes"));
  CHECK(contains(flat, "the data set needs one folder per class with its images: photos/cat/1.jpg"));
  add(folder, "cat/1.jpg");
  CHECK(contains(error_of([&] { open(folder); }), "1.jpg' is next to the class folders"));
  fs::remove(folder.path() + "/1.jpg");
  add(folder, "dog/readme.txt");
  CHECK(contains(error_of([&] { open(folder); }), "dog' contains no images"));
  CHECK(contains(error_of([&] { open_image_folder({.paths = {folder.path() + "/none"}}); }), "there is no file"));
}

TEST_CASE("an image of an unsupported format is named and not skipped") {
  const ScratchFolder folder;
  add(folder, "cat/1.jpg");
  add(folder, "cat/2.webp");
  CHECK(contains(error_of([&] { open(folder); }), "cat/2.webp' has an image format that trainctl does not support"));
}

TEST_CASE("a pipe in place of an image is an error when the set is opened, not a read that never ends") {
  const ScratchFolder folder;
  add(folder, "cat/1.jpg");
  REQUIRE(mkfifo((folder.path() + "/cat/2.jpg").c_str(), 0600) == 0);
  CHECK(contains(error_of([&] { open(folder); }), "cat/2.jpg: is not a file, but a pipe"));
}

TEST_CASE("links to folders are followed, and one that leads back is an error, not a walk without end") {
  const ScratchFolder folder, elsewhere;
  add(folder, "cat/1.jpg");
  add(elsewhere, "1.jpg");
  fs::create_directory_symlink(elsewhere.path(), folder.path() + "/dog");
  CHECK(open(folder)->size() == 2);
  fs::create_directory_symlink(folder.path() + "/cat", folder.path() + "/cat/again");
  CHECK(contains(error_of([&] { open(folder); }), "cat/again: is a link to a folder that contains it"));
}

TEST_CASE(
    "a link to a missing image is a sample that cannot be read, and a link to a missing folder cannot be listed") {
  const ScratchFolder folder;
  add(folder, "cat/1.jpg");
  fs::create_symlink(folder.path() + "/nowhere", folder.path() + "/cat/2.jpg");
  const auto source = open(folder);
  REQUIRE(source->size() == 2);
  CHECK(contains(error_of([&] { read_sample(*source, 1); }), "cat/2.jpg: "));
  fs::create_symlink(folder.path() + "/nowhere", folder.path() + "/dog");
  CHECK(contains(error_of([&] { open(folder); }), "/dog: cannot be listed: No such file or directory"));
}

TEST_CASE("an empty image is named") {
  const ScratchFolder folder;
  add(folder, "cat/1.jpg");
  folder.write("cat/1.jpg", {});
  CHECK(contains(error_of([&] { read_sample(*open(folder), 0); }), "cat/1.jpg: is empty"));
}

TEST_CASE("an image of a folder takes its name and 4 bytes of memory") {
  const ScratchFolder folder;
  add(folder, "cat/00001.jpg");
  const int64_t before = open(folder)->memory_bytes();
  constexpr int64_t kMore = 2000;
  for (int i = 0; i < kMore; ++i) folder.write(fmt::format("cat/1{:04}.jpg", i), {1});
  CHECK(open(folder)->memory_bytes() - before < kMore * (9 + 4) * 5 / 4);
}
