// main() of trainctl.
#include "cli/command_line.h"

int main(int argc, char** argv) { return trainctl::run_command_line(argc, argv); }
