// Tests how the output of cluster managers is read: node lists, and recorded environments of processes that they start.
#include <doctest/doctest.h>

#include <map>

#include "engine/base/error.h"
#include "launcher/clusters/fill.h"
#include "launcher/clusters/manifests.h"
#include "launcher/clusters/node_list.h"
#include "launcher/clusters/started_by.h"

using namespace trainctl;
using namespace trainctl::clusters;

namespace {

using Names = std::vector<std::string>;

StartedBy with(const std::map<std::string, std::string>& variables) {
  return started_by([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

}  // namespace

TEST_CASE("a list of nodes is expanded as scontrol show hostnames does it") {
  CHECK(expand_nodes("a") == Names{"a"});
  CHECK(expand_nodes("a,b") == Names{"a", "b"});
  CHECK(expand_nodes("n[1-3]") == Names{"n1", "n2", "n3"});
  CHECK(expand_nodes("n[08-10,2],login") == Names{"n08", "n09", "n10", "n2", "login"});
  CHECK(expand_nodes("r[1-2]n[0-1]-ib") == Names{"r1n0-ib", "r1n1-ib", "r2n0-ib", "r2n1-ib"});
  CHECK(expand_nodes("mnist-[0-1].mnist") == Names{"mnist-0.mnist", "mnist-1.mnist"});
}

TEST_CASE("text that is not a list of nodes is refused") {
  for (const char* text : {"", ",", "a,,b", "n[1", "n1]", "n[]", "n[3-1]", "n[a]", "n[1-]", "n[-1]", "n[0-99999999]",
                           "n[0-999][0-999]", "n[1-99999999999]"})
    CHECK_MESSAGE(!expand_nodes(text), text);
}

TEST_CASE("a process that no cluster manager started was started by the user") {
  CHECK(with({}).manager == Manager::none);
  // A login shell of a cluster has some of Slurm's variables, but belongs to no job.
  CHECK(with({{"SLURM_CONF", "/etc/slurm/slurm.conf"}, {"SLURM_CLUSTER_NAME", "c"}}).manager == Manager::none);
}

TEST_CASE("a batch script of Slurm 22.05 is alone on the first of its nodes") {
  const StartedBy by = with({{"SLURM_JOB_ID", "12"},
                             {"SLURM_JOBID", "12"},
                             {"SLURM_JOB_NODELIST", "n[1-2]"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_RESTART_COUNT", "1"}});
  CHECK(by.manager == Manager::slurm);
  CHECK(by.job == "12");
  CHECK(by.hosts == Names{"n1", "n2"});
  CHECK(by.index == 0);
  CHECK(by.count == 1);
  CHECK(by.restarts == 1);
}

TEST_CASE("salloc's interactive step of Slurm 23.02 is alone") {
  const StartedBy by = with({{"SLURM_JOB_ID", "7"},
                             {"SLURM_JOB_NODELIST", "gpu[01-04]"},
                             {"SLURM_STEP_ID", "4294967290"},
                             {"SLURM_STEP_NUM_TASKS", "1"},
                             {"SLURM_NTASKS", "4"},
                             {"SLURM_PROCID", "0"}});
  CHECK(by.hosts.size() == 4);
  CHECK(by.count == 1);
  CHECK(by.restarts == 0);
}

TEST_CASE("srun starts one process a task") {
  const StartedBy by = with({{"SLURM_JOB_ID", "1"},
                             {"SLURM_JOB_NODELIST", "n[1-2]"},
                             {"SLURM_STEP_ID", "0"},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_PROCID", "1"},
                             {"SLURM_LOCALID", "0"}});
  CHECK(by.index == 1);
  CHECK(by.count == 2);
}

TEST_CASE("the variables of Slurm 17 have other names") {
  const StartedBy by = with({{"SLURM_JOBID", "9"},
                             {"SLURM_NODELIST", "a,b"},
                             {"SLURM_STEPID", "3"},
                             {"SLURM_NPROCS", "2"},
                             {"SLURM_PROCID", "0"}});
  CHECK(by.manager == Manager::slurm);
  CHECK(by.hosts == Names{"a", "b"});
  CHECK(by.count == 2);
}

TEST_CASE("mpirun of Open MPI under Slurm counts before Slurm") {
  const StartedBy by = with({{"SLURM_JOB_ID", "1"},
                             {"SLURM_JOB_NODELIST", "n[1-2]"},
                             {"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  CHECK(by.manager == Manager::mpi);
  CHECK(by.name == "Open MPI");
  CHECK(by.index == 3);
  CHECK(by.count == 4);
  CHECK(by.local_index == 1);
}

TEST_CASE("mpiexec of MPICH is known by its connection") {
  const StartedBy by = with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "6"}, {"MPI_LOCALRANKID", "0"}});
  CHECK(by.name == "MPICH");
  CHECK(by.index == 1);
}

TEST_CASE("a task of srun --mpi=pmi2 is Slurm's, not MPICH's") {
  const StartedBy by = with({{"SLURM_JOB_ID", "1"},
                             {"SLURM_JOB_NODELIST", "n[1-2]"},
                             {"SLURM_STEP_ID", "0"},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_PROCID", "1"},
                             {"PMI_FD", "12"},
                             {"PMI_RANK", "1"},
                             {"PMI_SIZE", "2"}});
  CHECK(by.manager == Manager::slurm);
  CHECK(by.index == 1);
}

TEST_CASE("tasks of srun --mpi=pmix meet through PMIx") {
  std::map<std::string, std::string> variables = {{"SLURM_JOB_ID", "31"},
                                                  {"SLURM_JOB_NODELIST", "n[1-2]"},
                                                  {"SLURM_STEP_ID", "0"},
                                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                                  {"SLURM_PROCID", "1"},
                                                  {"SLURM_LOCALID", "0"},
                                                  {"SLURM_RESTART_COUNT", "1"},
                                                  {"PMIX_NAMESPACE", "slurm.pmix.31.0"},
                                                  {"PMIX_RANK", "1"}};
  const StartedBy by = with(variables);
  CHECK(by.manager == Manager::mpi);
  CHECK(by.name == kPmixOfSlurm);
  CHECK(by.index == 1);
  CHECK(by.count == 2);
  CHECK(by.job == "31");
  CHECK(by.restarts == 1);
  variables["SLURM_STEP_NUM_TASKS"] = "1";
  variables["SLURM_PROCID"] = "0";
  CHECK(with(variables).manager == Manager::slurm);
}

TEST_CASE("each job of an array is a separate job") {
  for (const char* task : {"0", "1"}) {
    const StartedBy by = with({{"SLURM_JOB_ID", task == std::string("0") ? "41" : "40"},
                               {"SLURM_ARRAY_JOB_ID", "40"},
                               {"SLURM_ARRAY_TASK_ID", task},
                               {"SLURM_ARRAY_TASK_COUNT", "2"},
                               {"SLURM_JOB_NODELIST", "n1"},
                               {"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "1"}});
    CHECK(by.count == 1);
    CHECK(by.job == (task == std::string("0") ? "41" : "40"));
  }
}

TEST_CASE("a pod knows all pods and its own number") {
  const StartedBy by = with({{"TRAINCTL_PODS", "mnist-[0-2].mnist"}, {"JOB_COMPLETION_INDEX", "2"}});
  CHECK(by.manager == Manager::pods);
  CHECK(by.index == 2);
  CHECK(by.hosts == Names{"mnist-0.mnist", "mnist-1.mnist", "mnist-2.mnist"});
  CHECK(by.job.empty());
}

TEST_CASE("all pods of a Job, started again or not, have its uid") {
  const StartedBy by =
      with({{"TRAINCTL_PODS", "a-[0-1].a"}, {"JOB_COMPLETION_INDEX", "0"}, {"TRAINCTL_JOB", "f81d4fae"}});
  CHECK(by.job == "f81d4fae");
}

TEST_CASE("an environment that contradicts itself names the variable") {
  CHECK_THROWS_WITH_AS(with({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "n[1"}}),
                       "SLURM_JOB_NODELIST is 'n[1', which is not a list of nodes", EnvError);
  CHECK_THROWS_WITH_AS(with({{"OMPI_COMM_WORLD_RANK", "x"}}), "OMPI_COMM_WORLD_RANK is 'x', which is not a number",
                       EnvError);
  CHECK_THROWS_WITH_AS(with({{"TRAINCTL_PODS", "a-[0-1]"}, {"JOB_COMPLETION_INDEX", "2"}}),
                       "process 2 of 2: Kubernetes has set inconsistent environment variables", EnvError);
}

TEST_CASE("a template's line is filled, repeated for each line of its value, or left out") {
  const Values values{{"name", "a"}, {"list", "x\ny"}, {"none", ""}, {"block", "k:\n  - v\n"}};
  CHECK(fill("n: {{name}} {{name}}\n", values) == "n: a a\n");
  CHECK(fill("  - {{list}}\n", values) == "  - x\n  - y\n");
  CHECK(fill("z: {{none}}\nend\n", values) == "end\n");
  CHECK(fill("  {{block}}\n", values) == "  k:\n    - v\n");
  CHECK(fill("{a: {{name}}}\n", values) == "{a: a}\n");
}

TEST_CASE("a word for a shell is in quotes if it needs them") {
  CHECK(shell_word("a/b-c=1") == "a/b-c=1");
  CHECK(shell_word("it's $x") == "'it'\\''s $x'");
  CHECK(shell_word("") == "''");
}

TEST_CASE("names of pods are valid DNS names") {
  CHECK(name_of_pods("mnist_mlp") == "mnist-mlp");
  CHECK(name_of_pods("ResNet-50!") == "resnet-50");
  CHECK(name_of_pods("3d") == "job-3d");
  CHECK(name_of_pods("___") == "job");
  CHECK(name_of_pods(std::string(80, 'a')) == std::string(40, 'a'));
}

TEST_CASE("the time before a kill is enough for two checkpoints") {
  JobSpec job;
  job.launch.grace_seconds = 10;
  CHECK(stop_seconds(job, {}) == 60);
  CHECK(stop_seconds(job, {.save_seconds = 100}) == 240);
}
