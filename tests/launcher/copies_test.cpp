// Tests of launch.copy: which paths are copied, the names of copies, and where a host keeps them
// (launcher/hosts/copies.h).
#include "launcher/hosts/copies.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using namespace trainctl::hosts;
namespace fs = std::filesystem;

namespace {

void write_text(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::trunc) << text;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Sends a copy to a host in pieces of three bytes.
void send_copy(const Copy& copy, const KeptCopies& kept) {
  for (const Copy::File& file : copy.files) {
    const std::string text = read_text(file.path);
    kept.write(copy.name, file.name, 0, "", file.is_executable);
    for (size_t at = 0; at < text.size(); at += 3)
      kept.write(copy.name, file.name, static_cast<int64_t>(at), text.substr(at, 3), file.is_executable);
  }
  kept.keep(copy.name);
}

/// The host of a launcher, which has a project, and the cache of another host.
struct Hosts {
  Scratch here, there;
  const std::string project = here.path() + "/project", agent = there.path() + "/runs/1f";
  Hosts() {
    write_text(project + "/train.py", "print(1)\n");
    write_text(project + "/data/a.csv", "x,y\n1,2\n");
    write_text(project + "/data/more/b.csv", "");
    write_text(project + "/run.sh", "#!/bin/sh\n");
    chmod((project + "/run.sh").c_str(), 0755);
    fs::create_directories(agent);
  }
};

}  // namespace

TEST_CASE(
    "copies: the name of a copy depends on the contents, names and execute permissions of its files, and on nothing "
    "else") {
  Hosts hosts;
  const std::string data = hosts.project + "/data";
  const std::string name = copies_of({data}).at(0).name;
  CHECK(name.size() == 64);
  fs::last_write_time(data + "/a.csv", fs::file_time_type::clock::now() - std::chrono::hours(1));
  fs::copy(data, hosts.here.path() + "/elsewhere", fs::copy_options::recursive);
  CHECK(copies_of({data}).at(0).name == name);
  CHECK(copies_of({hosts.here.path() + "/elsewhere"}).at(0).name == name);
  chmod((data + "/a.csv").c_str(), 0755);
  CHECK(copies_of({data}).at(0).name != name);
  chmod((data + "/a.csv").c_str(), 0644);
  CHECK(copies_of({data}).at(0).name == name);
  fs::rename(data + "/a.csv", data + "/c.csv");
  CHECK(copies_of({data}).at(0).name != name);
  fs::rename(data + "/c.csv", data + "/a.csv");
  write_text(data + "/a.csv", "x,y\n1,3\n");
  CHECK(copies_of({data}).at(0).name != name);
}

TEST_CASE("copies: a path inside another one, and one that is listed twice, is copied once") {
  Hosts hosts;
  const auto copies = copies_of({hosts.project + "/data/a.csv", hosts.project, hosts.project, hosts.project + "/data"});
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].path == hosts.project);
  CHECK(copies[0].files.size() == 4);
  CHECK(copies[0].bytes() == 9 + 8 + 10);
}

TEST_CASE("copies: a path that cannot be copied is named") {
  Hosts hosts;
  const auto fault = [](const std::string& path) -> std::string {
    try {
      copies_of({path});
      return "";
    } catch (const EnvError& error) {
      return error.what();
    }
  };
  CHECK(fault("/nowhere/at/all") == "launch.copy: cannot read /nowhere/at/all: No such file or directory");
  CHECK(fault("/dev/null") == "launch.copy: /dev/null is neither a file nor a folder");
  fs::create_directory(hosts.project + "/empty");
  CHECK(fault(hosts.project + "/empty") == "launch.copy: " + hosts.project + "/empty contains no files");
  fs::create_directory_symlink("/etc", hosts.project + "/data/link");
  CHECK(fault(hosts.project).find("is a link to a folder") != std::string::npos);
}

TEST_CASE("copies: a host keeps a copy once, and ranks find it at the path that it has on the launcher's host") {
  Hosts hosts;
  const std::string data = hosts.project + "/data";
  const Copy copy = copies_of({data}).at(0);
  const KeptCopies kept(hosts.agent, "", {{copy.path, copy.name}});
  CHECK(kept.missing() == std::set<std::string>{copy.name});
  send_copy(copy, kept);
  CHECK(kept.missing().empty());
  kept.link();
  kept.link();  // as another attempt does
  const std::string found = hosts.agent + "/" + copied_path({data}, data + "/a.csv").value();
  CHECK(read_text(found) == "x,y\n1,2\n");
  CHECK(fs::exists(hosts.agent + "/" + copied_path({data}, data + "/more/b.csv").value()));
  fs::remove_all(hosts.agent);
  CHECK(read_text(hosts.there.path() + "/copies/" + copy.name + "/a.csv") == "x,y\n1,2\n");
  CHECK(KeptCopies(hosts.there.path() + "/runs/2e", "", {{copy.path, copy.name}}).missing().empty());
}

TEST_CASE("copies: a single file can be copied too, and keeps its execute permission") {
  Hosts hosts;
  const std::string script = hosts.project + "/run.sh";
  const Copy copy = copies_of({script}).at(0);
  const KeptCopies kept(hosts.agent, "", {{copy.path, copy.name}});
  send_copy(copy, kept);
  kept.link();
  struct stat info {};
  REQUIRE(stat((hosts.agent + "/copied" + script).c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0500);  // it can be read and executed, but not written to
}

TEST_CASE("copies: files that a program writes to its folder do not enter the cache") {
  Hosts hosts;
  for (const std::vector<std::string>& paths :
       {std::vector{hosts.project}, std::vector{hosts.project + "/train.py", hosts.project + "/data"},
        std::vector{hosts.here.path()}}) {
    const std::string agent = hosts.there.path() + "/runs/" + std::to_string(paths.size()) + paths[0].substr(1, 3);
    fs::create_directories(agent);
    const auto folder = copied_folder(paths, hosts.project);
    REQUIRE(folder);
    std::vector<KeptCopies::Wanted> wanted;
    const auto copies = copies_of(paths);
    for (const Copy& copy : copies) wanted.push_back({copy.path, copy.name});
    const KeptCopies kept(agent, *folder, wanted);
    for (const Copy& copy : copies)
      if (kept.missing().contains(copy.name)) send_copy(copy, kept);
    kept.link();
    CHECK(read_text(agent + "/" + *folder + "/train.py") == "print(1)\n");
    CHECK(read_text(agent + "/" + *folder + "/data/a.csv") == "x,y\n1,2\n");
    write_text(agent + "/" + *folder + "/out/result", "7");
    for (const auto& entry : fs::recursive_directory_iterator(hosts.there.path() + "/copies"))
      CHECK(entry.path().filename() != "result");
    fs::remove_all(agent);
  }
  CHECK_FALSE(copied_folder({hosts.project + "/data"}, "/somewhere/else"));
  CHECK_FALSE(copied_path({hosts.project + "/data"}, hosts.project + "/data2/a.csv"));
}

TEST_CASE("copies: no name that a launcher sends refers to a path outside the cache") {
  Hosts hosts;
  const std::string name(64, 'a');
  CHECK_THROWS_AS(KeptCopies(hosts.agent, "", {{"/x/../../y", name}}), EnvError);
  CHECK_THROWS_AS(KeptCopies(hosts.agent, "", {{"relative", name}}), EnvError);
  CHECK_THROWS_AS(KeptCopies(hosts.agent, "", {{"/x", "../../../etc"}}), EnvError);
  const KeptCopies kept(hosts.agent, "", {{"/x", name}});
  for (const char* file : {"../y", "a/../../y", "/etc/y", "./y"})
    CHECK_THROWS_AS(kept.write(name, file, 0, "y", false), EnvError);
  CHECK_THROWS_AS(kept.write("..", "y", 0, "y", false), EnvError);
  CHECK_THROWS_AS(kept.write(name, "y", -1, "y", false), EnvError);
  CHECK_THROWS_AS(kept.keep("../runs"), EnvError);
  kept.write(name, "y", 0, "y", false);
  fs::create_symlink("/tmp/nowhere", hosts.agent + "/coming." + name + "/z");
  CHECK_THROWS_AS(kept.write(name, "z", 0, "y", false), EnvError);
}
