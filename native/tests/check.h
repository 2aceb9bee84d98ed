// The little that these tests need of a test framework.

#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                    \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

#define RUN(test)                                                                                                      \
    do {                                                                                                               \
        test();                                                                                                        \
        std::printf("ok %s\n", #test);                                                                                 \
    } while (0)
