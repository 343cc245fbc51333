package holdfast;

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import scala.Function1;

/**
 * Pushes the rows of one task of a real-time query to the stage's Python process, over a Unix socket.
 *
 * <p>A connection is of one task in one of Spark's batches: the secret, both numbers, an Arrow stream, and one more byte if
 * the task ended well. A row leaves some milliseconds after it came, or with as many as one batch may hold. Without rows an
 * empty batch says now and then that this JVM is alive. Whoever does not read holds the task up, and with it the source.
 *
 * <p>Nothing is decided here: rows carry the positions that they were read at, and what counts is the stage's affair.
 */
public final class RealTimeWriter extends ForeachWriter<Row> {
  private static final long serialVersionUID = 1L;
  /** After an end without an error. */
  private static final int WHOLE = 1;

  private final String path;
  private final byte[] secret;
  private final StructType schema;
  private final String zone;
  private final long everyMs;
  private final long aliveMs;
  private final int rowsMax;

  private transient SocketChannel channel;
  private transient DataOutputStream out;
  private transient ArrowWriter writer;
  private transient ArrowStreamWriter stream;
  private transient Function1<Object, Object> toInternal;
  private transient Thread clock;
  private transient int rows;
  private transient long flushedNs;
  private transient boolean ended;
  private transient IOException failure;

  public RealTimeWriter(
      String path, byte[] secret, StructType schema, String zone, long everyMs, long aliveMs, int rowsMax) {
    this.path = path;
    this.secret = secret;
    this.schema = schema;
    this.zone = zone;
    this.everyMs = everyMs;
    this.aliveMs = aliveMs;
    this.rowsMax = rowsMax;
  }

  @Override
  public boolean open(long task, long batch) {
    try {
      channel = SocketChannel.open(StandardProtocolFamily.UNIX);
      channel.connect(UnixDomainSocketAddress.of(path));
      out = new DataOutputStream(new BufferedOutputStream(Channels.newOutputStream(channel), 1 << 16));
      out.write(secret);
      out.writeLong(batch);
      out.writeLong(task);
      writer = ArrowWriter.create(schema, zone, false, false);
      stream = new ArrowStreamWriter(writer.root(), null, out);
      toInternal = CatalystTypeConverters.createToCatalystConverter(schema);
      stream.start();
      flush();
    } catch (IOException error) {
      throw new IllegalStateException("the stage that rows are pushed to cannot be reached", error);
    }
    clock = new Thread(this::run, "holdfast-push-" + batch + "-" + task);
    clock.setDaemon(true);
    clock.start();
    return true;
  }

  @Override
  public synchronized void process(Row row) {
    check();
    writer.write((InternalRow) toInternal.apply(row));
    rows += 1;
    if (rows >= rowsMax) {
      try {
        flush();
      } catch (IOException error) {
        failure = error;
        check();
      }
    }
  }

  @Override
  public void close(Throwable error) {
    synchronized (this) {
      ended = true;
      notifyAll();
      if (writer == null) {
        return; // it has never reached anybody
      }
      try (SocketChannel closed = channel) {
        if (error == null && failure == null) {
          flush();
          stream.end();
          out.write(WHOLE);
          out.flush();
        }
      } catch (IOException late) {
        failure = late;
      } finally {
        writer.root().close();
      }
    }
    if (error == null) {
      check();
    }
  }

  /** Lets rows go that have waited, and a sign of life if there are none. */
  private synchronized void run() {
    try {
      while (!ended && failure == null) {
        wait(everyMs);
        if (!ended && (rows > 0 || System.nanoTime() - flushedNs >= aliveMs * 1_000_000)) {
          flush();
        }
      }
    } catch (IOException error) {
      failure = error;
    } catch (InterruptedException error) {
      failure = new IOException("interrupted", error);
    }
  }

  private void flush() throws IOException {
    writer.finish();
    stream.writeBatch();
    out.flush();
    writer.reset();
    rows = 0;
    flushedNs = System.nanoTime();
  }

  private void check() {
    if (failure != null) {
      throw new IllegalStateException("the stage that rows are pushed to takes no more", failure);
    }
  }
}
