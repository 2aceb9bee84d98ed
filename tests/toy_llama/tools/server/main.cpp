// A stand-in for llama-server on a machine with an AMD GPU.
//
// It sees the GPU if the plugin beside it can be loaded, with all the libraries that that needs. Another server does the
// serving, as the program PYTHON with the script SERVER; for every picture that it encodes, the one of libmtmd is too.
#include "mtmd.h"
#include "stand_in.h" // PYTHON and SERVER

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

static const std::string ENCODES = "encoding mtmd batch";

static int list_devices() {
    char self[4096] = {};
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
        return 1;
    }
    const std::string path(self);
    std::puts("Available devices:");
    if (dlopen((path.substr(0, path.rfind('/')) + "/libggml-hip.so").c_str(), RTLD_NOW) != nullptr) {
        std::puts("  ROCm0: A stand-in (1024 MiB, 1000 MiB free)");
    }
    return 0;
}

// Until the other end is gone, which is when the server is: nothing else may end this first.
static int pass_on() {
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
    std::string line;
    while (std::getline(std::cin, line)) {
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
        if (line.find(ENCODES) != std::string::npos && !encode_picture()) {
            return 1;
        }
    }
    return 0;
}

static int serve(int argc, char ** argv) {
    int ends[2];
    if (pipe(ends) != 0) {
        return 1;
    }
    const pid_t reader = fork();
    if (reader == 0) {
        dup2(ends[0], STDIN_FILENO);
        close(ends[0]);
        close(ends[1]);
        return pass_on();
    }
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    std::vector<char *> words = {
        const_cast<char *>(PYTHON), const_cast<char *>("-P"), const_cast<char *>("-c"), const_cast<char *>(SERVER)};
    words.insert(words.end(), argv + 1, argv + argc);
    words.push_back(nullptr);
    execv(PYTHON, words.data());
    return 1;
}

int main(int argc, char ** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
        std::puts("version: " BUILD);
        return 0;
    }
    if (argc == 2 && std::strcmp(argv[1], "--list-devices") == 0) {
        return list_devices();
    }
    return serve(argc, argv);
}
