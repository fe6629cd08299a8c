// SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
// SPDX-License-Identifier: Apache-2.0
//
// A closed loop of streaming chat requests, cheap enough not to matter: one thread, one epoll.
//
//   load PORT MODEL STREAMS MAX_TOKENS RAMP_S SETTLE_S WINDOW_S PROMPT
//
// Each stream asks again as soon as its answer has ended. The window of WINDOW_S opens SETTLE_S after
// the ramp, but not before every stream has had a token (PATIENCE_S at most); a "window" line goes to
// stdout at its start and end, so that whoever runs us can read the CPU clocks of other processes at
// the same moments. One character of text is one token.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum state { HEAD, SIZE, DATA, AFTER };
struct stream {
    int fd;
    enum state state;
    long left;
    int last_chunk, begun;
    char line[1 << 16];
    int length;
    double asked, last;
};

static int port, poll_fd, measuring, begun;
static const double PATIENCE_S = 30;
static char request[1 << 16];
static int request_length;
static long tokens, chunks, answers, errors, gap_count, first_count;
static float *gaps, *firsts;
static const long GAPS = 1L << 24, FIRSTS = 1L << 20;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void ask(struct stream *s) {
    s->state = HEAD;
    s->length = 0;
    s->last = 0;
    s->last_chunk = 0;
    s->asked = now();
    for (int sent = 0; sent < request_length;) {
        ssize_t n = send(s->fd, request + sent, request_length - sent, MSG_NOSIGNAL);
        if (n < 0) {
            errors++;
            return;
        }
        sent += n;
    }
}

static void open_stream(struct stream *s) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(s->fd, (struct sockaddr *)&to, sizeof to) < 0) {
        perror("connect");
        exit(1);
    }
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, s->fd, &e);
    ask(s);
}

static void take_line(struct stream *s, double t) {
    if (s->length < 6 || memcmp(s->line, "data: ", 6))
        return;
    if (s->length >= 12 && !memcmp(s->line + 6, "[DONE]", 6)) {
        answers += measuring;
        return;
    }
    char *text = memmem(s->line, s->length, "\"content\":\"", 11);
    if (!text) {
        if (memmem(s->line, s->length, "\"error\"", 7))
            errors++;
        return;
    }
    text += 11;
    char *end = memchr(text, '"', s->line + s->length - text);
    if (!end || end == text)
        return;
    begun += !s->begun;
    s->begun = 1;
    // First tokens are counted from the start: an answer may be longer than the window.
    if (s->last == 0 && first_count < FIRSTS)
        firsts[first_count++] = (t - s->asked) * 1e3;
    if (measuring) {
        tokens += end - text;
        chunks++;
        if (s->last > 0 && gap_count < GAPS)
            gaps[gap_count++] = (t - s->last) * 1e3;
    }
    s->last = t;
}

static void take_data(struct stream *s, const char *data, long size, double t) {
    while (size) {
        const char *end = memchr(data, '\n', size);
        long part = end ? end - data : size;
        if (s->length + part < (long)sizeof s->line) {
            memcpy(s->line + s->length, data, part);
            s->length += part;
        }
        if (!end)
            return;
        take_line(s, t);
        s->length = 0;
        data += part + 1;
        size -= part + 1;
    }
}

// One read's worth of a chunked HTTP/1.1 answer; asks again where the answer ends.
static void feed(struct stream *s, const char *data, long size, double t) {
    for (long i = 0; i < size;) {
        if (s->state == HEAD) {
            if (s->length < (long)sizeof s->line)
                s->line[s->length++] = data[i];
            i++;
            if (s->length >= 4 && !memcmp(s->line + s->length - 4, "\r\n\r\n", 4)) {
                if (memcmp(s->line, "HTTP/1.1 200", 12))
                    errors++;
                s->state = SIZE;
                s->left = s->length = 0;
            }
        } else if (s->state == SIZE) {
            char c = data[i++];
            if (c >= '0' && c <= '9')
                s->left = s->left * 16 + c - '0';
            else if (c >= 'A' && c <= 'F')
                s->left = s->left * 16 + c - 'A' + 10;
            else if (c >= 'a' && c <= 'f')
                s->left = s->left * 16 + c - 'a' + 10;
            else if (c == '\n') {
                s->last_chunk = s->left == 0;
                s->state = s->last_chunk ? AFTER : DATA;
            }
        } else if (s->state == DATA) {
            long part = size - i < s->left ? size - i : s->left;
            take_data(s, data + i, part, t);
            i += part;
            s->left -= part;
            if (!s->left)
                s->state = AFTER;
        } else if (data[i++] == '\n') {
            if (s->last_chunk) {
                ask(s);
                return;
            }
            s->state = SIZE;
            s->left = 0;
        }
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(float *)a, y = *(float *)b;
    return (x > y) - (x < y);
}

static float at(float *sorted, long count, double share) {
    return count ? sorted[(long)(share * (count - 1))] : 0;
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "load PORT MODEL STREAMS MAX_TOKENS RAMP_S SETTLE_S WINDOW_S PROMPT\n");
        return 2;
    }
    port = atoi(argv[1]);
    int count = atoi(argv[3]), opened = 0;
    double ramp = atof(argv[5]), settle = atof(argv[6]), window = atof(argv[7]);
    static char body[1 << 15];
    int length = snprintf(body, sizeof body,
                          "{\"model\":\"%s\",\"stream\":true,\"max_tokens\":%s,"
                          "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
                          argv[2], argv[4], argv[8]);
    request_length = snprintf(request, sizeof request,
                              "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                              "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                              length, body);
    gaps = malloc(GAPS * sizeof *gaps);
    firsts = malloc(FIRSTS * sizeof *firsts);
    struct stream *streams = calloc(count, sizeof *streams);
    poll_fd = epoll_create1(0);
    double began = now(), from = began + ramp + settle, until = from + PATIENCE_S + window;
    static char data[1 << 18];
    struct epoll_event events[512];
    for (double t = began; t < until; t = now()) {
        int due = ramp > 0 ? (int)((t - began) / ramp * count) + 1 : count;
        for (; opened < count && opened < due; opened++)
            open_stream(streams + opened);
        if (!measuring && t >= from && (begun == count || t >= from + PATIENCE_S)) {
            measuring = 1;
            from = t;
            until = from + window;
            puts("window");
            fflush(stdout);
        }
        int n = epoll_wait(poll_fd, events, 512, 5);
        for (int i = 0; i < n; i++) {
            struct stream *s = events[i].data.ptr;
            ssize_t got = recv(s->fd, data, sizeof data, MSG_DONTWAIT);
            if (got > 0) {
                feed(s, data, got, now());
            } else if (got == 0 || errno != EAGAIN) {
                errors++;
                close(s->fd);
                open_stream(s);
            }
        }
    }
    puts("window");
    fflush(stdout);
    double seconds = now() - from;
    qsort(gaps, gap_count, sizeof *gaps, by_size);
    qsort(firsts, first_count, sizeof *firsts, by_size);
    printf("{\"begun\":%d,\"seconds\":%.3f,\"tokens\":%ld,\"chunks\":%ld,\"answers\":%ld,\"errors\":%ld,"
           "\"gap_p50_ms\":%.3f,\"gap_p99_ms\":%.3f,\"gap_max_ms\":%.3f,"
           "\"first_p50_ms\":%.3f,\"first_p99_ms\":%.3f}\n",
           begun, seconds, tokens, chunks, answers, errors, at(gaps, gap_count, .5),
           at(gaps, gap_count, .99), at(gaps, gap_count, 1), at(firsts, first_count, .5),
           at(firsts, first_count, .99));
    return 0;
}
