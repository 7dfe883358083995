// Tests of folders as Hugging Face's save_to_disk writes them. tests/train/tables reads folders that the package
// datasets itself has written.
#include "engine/train/data/tables/hugging_face.h"

#include <doctest/doctest.h>

#include "tests/train/sources/read_source.h"

using namespace trainctl;

namespace {

std::string error_of_state(const std::string& state) {
  const ScratchFolder folder;
  folder.write("state.json", to_bytes(state));
  const std::string error = error_of([&] { hugging_face_files(folder.path()); });
  return error.starts_with(folder.path()) ? error.substr(folder.path().size() + 1) : error;
}

}  // namespace

TEST_CASE("a saved data set names Arrow files in its own folder, in order") {
  const ScratchFolder folder;
  folder.write("state.json", to_bytes(R"({"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]})"));
  CHECK(hugging_face_files(folder.path()) ==
        std::vector<std::string>{folder.path() + "/b.arrow", folder.path() + "/a.arrow"});
}

TEST_CASE("a saved data set that names any other file is an error that shows the name") {
  const auto names = [](const std::string& name) { return R"({"_data_files": [{"filename": ")" + name + R"("}]})"; };
  CHECK(error_of_state(names("part")) == "state.json: _data_files names 'part', which is not an .arrow file");
  CHECK(error_of_state(names("t.csv")) == "state.json: _data_files names 't.csv', which is not an .arrow file");
  CHECK(error_of_state(names("../t.arrow")).find("'../t.arrow', which is outside of its folder") != std::string::npos);
  CHECK(error_of_state(R"({"_data_files": [{}]})") == "state.json: an entry of _data_files has no filename");
  CHECK(error_of_state(R"({"_data_files": []})") == "state.json: expected the list _data_files");
}
