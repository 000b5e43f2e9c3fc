// A few threads that wait for work, for copies so large that one core does not reach the memory's bandwidth.
//
// A job is a number of pieces; whoever is free takes the next one. The caller takes pieces too and waits at the end for
// pieces that others have begun only, so that a thread which does not get a core delays nothing. One job at a time:
// a caller who finds the pool at work does its pieces alone. Threads are started at the first use, asleep between
// jobs, and never end: they hold nothing. A forked child has none of them and starts its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace replaybank {

class ThreadPool {
public:
    static constexpr std::int64_t kMostHelpers = 15;

    // piece(k) for every k in [0, pieces), by the caller and up to `helpers` threads.
    template <class Piece>
    static void run(std::int64_t pieces, std::int64_t helpers, const Piece& piece) {
        ThreadPool& pool = instance();
        if (helpers <= 0 || pieces <= 1 || !pool.busy_.try_lock()) {
            for (std::int64_t k = 0; k < pieces; ++k) piece(k);
            return;
        }
        const std::lock_guard<std::mutex> release(pool.busy_, std::adopt_lock);
        Job job{[](const void* context, std::int64_t k) { (*static_cast<const Piece*>(context))(k); }, &piece, pieces};
        pool.share(job, helpers < kMostHelpers ? helpers : kMostHelpers);
    }

private:
    struct Job {
        void (*piece)(const void*, std::int64_t);
        const void* context;
        std::int64_t pieces;
        std::atomic<std::int64_t> next{0};

        void work() {
            for (std::int64_t k = next++; k < pieces; k = next++) piece(context, k);
        }
    };

    static ThreadPool*& current() {
        static ThreadPool* pool = new ThreadPool;  // never deleted: its threads outlive static destructors
        return pool;
    }

    static ThreadPool& instance() {
#if defined(__unix__) || defined(__APPLE__)
        static const int registered = pthread_atfork(nullptr, nullptr, [] { current() = new ThreadPool; });
        (void)registered;
#endif
        return *current();
    }

    void share(Job& job, std::int64_t helpers) {
        std::unique_lock<std::mutex> guard(mutex_);
        while (threads_ < helpers && start()) ++threads_;
        job_ = &job;
        places_ = helpers;
        guard.unlock();
        for (std::int64_t h = 0; h < helpers; ++h) wake_.notify_one();
        job.work();
        guard.lock();
        job_ = nullptr;  // who has not come by now finds nothing to do
        done_.wait(guard, [this] { return working_ == 0; });
    }

    bool start() {
        // Signals are for the threads that Python knows.
#if defined(__unix__) || defined(__APPLE__)
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
        bool started = true;
        try {
            std::thread([this] { help(); }).detach();
        } catch (...) {  // no thread to be had: the caller does more
            started = false;
        }
#if defined(__unix__) || defined(__APPLE__)
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
        return started;
    }

    void help() {
        std::unique_lock<std::mutex> guard(mutex_);
        for (;;) {
            wake_.wait(guard, [this] { return job_ != nullptr && places_ > 0; });
            --places_;
            Job& job = *job_;
            ++working_;
            guard.unlock();
            job.work();
            guard.lock();
            if (--working_ == 0) done_.notify_one();
        }
    }

    std::mutex busy_;   // held by the caller whose job it is
    std::mutex mutex_;  // guards what is below
    std::condition_variable wake_;
    std::condition_variable done_;
    Job* job_ = nullptr;
    std::int64_t places_ = 0;
    std::int64_t working_ = 0;
    std::int64_t threads_ = 0;
};

}  // namespace replaybank
