import org.elasticmq.StrictSQSLimits$;
import org.elasticmq.rest.sqs.SQSRestServerBuilder;

/**
 * Serves ElasticMQ, in memory, on a free port of 127.0.0.1, and prints "listening HOST:PORT".
 *
 * <p>It ends when its standard input does, so that it never outlives the test that started it.
 */
public final class Emulator {
  public static void main(String[] args) throws Exception {
    Thread owner = new Thread(Emulator::awaitOwner, "owner");
    owner.setDaemon(true);
    owner.start();

    var server =
        SQSRestServerBuilder.withInterface("127.0.0.1")
            .withDynamicPort()
            .withSQSLimits(StrictSQSLimits$.MODULE$)
            .withAWSRegion("us-east-1")
            .start();
    int port = server.waitUntilStarted().localAddress().getPort();
    System.out.println("listening 127.0.0.1:" + port);
    Thread.currentThread().join();
  }

  private static void awaitOwner() {
    try {
      while (System.in.read() >= 0) {
        // The owner writes nothing.
      }
    } catch (java.io.IOException gone) {
      // As good as the end.
    }
    Runtime.getRuntime().halt(0);
  }
}
